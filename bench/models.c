/* SPDX-License-Identifier: MIT */
/* See models.h. Head counts and sizes are those of the published configurations; lengths are the
   model's own where it has one (ViT, Whisper), else usual ones: -q and -k replace them. */
#include "models.h"

#include <inttypes.h>
#include <stdio.h>

#define SHAPE(b, q, k, h, g, d, dv, causal)                             \
    {                                                                   \
        NULL, b, q, k, h, g, d, dv, causal, STAGE_RUN, NULL, 0, 0, NULL \
    }
#define NONE CAUSAL_NONE
#define PREFILL CAUSAL_TOP_LEFT
#define DECODE CAUSAL_BOTTOM_RIGHT

const struct model models[] = {
    {"minilm", "all-MiniLM-L6-v2, a sentence", SHAPE(1, 128, 128, 12, 12, 32, 32, NONE)},
    {"bert-base", "BERT base, full length", SHAPE(1, 512, 512, 12, 12, 64, 64, NONE)},
    {"bert-large", "BERT large, full length", SHAPE(1, 512, 512, 16, 16, 64, 64, NONE)},
    {"bert-base-batch", "BERT base, 8 short texts", SHAPE(8, 128, 128, 12, 12, 64, 64, NONE)},
    {"vit-b16", "ViT-B/16, 224 pixels", SHAPE(1, 197, 197, 12, 12, 64, 64, NONE)},
    {"vit-l16-384", "ViT-L/16, 384 pixels", SHAPE(1, 577, 577, 16, 16, 64, 64, NONE)},
    {"swin-t", "Swin-T, first stage, 64 windows", SHAPE(64, 49, 49, 3, 3, 32, 32, NONE)},
    {"clip-text", "CLIP ViT-B/32, text side", SHAPE(1, 77, 77, 8, 8, 64, 64, PREFILL)},
    {"sd15-self", "Stable Diffusion 1.5, 512 pixels, first level",
     SHAPE(1, 4096, 4096, 8, 8, 40, 40, NONE)},
    {"sd15-cross", "the same, over the prompt", SHAPE(1, 4096, 77, 8, 8, 40, 40, NONE)},
    {"whisper-base", "Whisper base, encoder", SHAPE(1, 1500, 1500, 8, 8, 64, 64, NONE)},
    {"whisper-base-cross", "Whisper base, one decoder step over the encoder",
     SHAPE(1, 1, 1500, 8, 8, 64, 64, NONE)},
    {"gpt2", "GPT-2, full length", SHAPE(1, 1024, 1024, 12, 12, 64, 64, PREFILL)},
    {"llama3-8b-prefill", "Llama 3 8B, prompt of 512",
     SHAPE(1, 512, 512, 32, 8, 128, 128, PREFILL)},
    {"llama3-8b-decode", "Llama 3 8B, one token after 4096",
     SHAPE(1, 1, 4096, 32, 8, 128, 128, DECODE)},
    {"qwen2.5-0.5b-prefill", "Qwen2.5 0.5B, prompt of 512",
     SHAPE(1, 512, 512, 14, 2, 64, 64, PREFILL)},
    {"qwen2.5-0.5b-decode", "Qwen2.5 0.5B, one token after 4096",
     SHAPE(1, 1, 4096, 14, 2, 64, 64, DECODE)},
    {"phi3-mini-prefill", "Phi-3 mini, prompt of 512",
     SHAPE(1, 512, 512, 32, 32, 96, 96, PREFILL)},
    {"gemma2-2b-prefill", "Gemma 2 2B, prompt of 512",
     SHAPE(1, 512, 512, 8, 4, 256, 256, PREFILL)},
    {"gemma3-1b-decode", "Gemma 3 1B, one key/value head",
     SHAPE(1, 1, 4096, 4, 1, 256, 256, DECODE)},
    {"deepseek-v2-lite", "DeepSeek-V2-Lite, prompt of 512, keys longer than values",
     SHAPE(1, 512, 512, 16, 16, 192, 128, PREFILL)},
};
#define N_MODELS (sizeof models / sizeof *models)

const char *model_name(size_t i) { return i < N_MODELS ? models[i].name : NULL; }

void models_print(void)
{
    printf("%-21s %2s %5s %5s %3s %3s %4s %4s %-13s %s\n", "model", "b", "q", "k", "h", "g", "d",
           "dv", "causal", "what");
    for (size_t i = 0; i < N_MODELS; i++) {
        const struct shape *s = &models[i].shape;
        printf("%-21s %2" PRId64 " %5" PRId64 " %5" PRId64 " %3" PRId64 " %3" PRId64 " %4" PRId64
               " %4" PRId64 " %-13s %s\n",
               models[i].name, s->b, s->q, s->k, s->h, s->g, s->d, s->dv,
               causal_name((size_t)s->causal), models[i].what);
    }
}
