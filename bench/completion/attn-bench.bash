# SPDX-License-Identifier: MIT
# Completion of attn-bench's options and of their values, for bash.

_attn_bench()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} values="" list=,
    # bash takes --impl=fused for three words
    [ "$cur" != = ] || cur=
    [ "$prev" != = ] || prev=${COMP_WORDS[COMP_CWORD - 2]}
    COMPREPLY=()
    case $prev in
    -m | --model) values=$("${COMP_WORDS[0]}" --list 2>/dev/null | sed '1d;s/ .*//') ;;
    --causal) values='none top-left bottom-right' ;;
    --alibi) values='off on' ;;
    --stage) values='run layer project scores softmax values' ;;
    --impl) values='fused unfused naive gemm' ;;
    --engine) values='blas vector' ;;
    --isa) values='best base avx2 avx512' ;;
    --window | --softcap) values=none ;;
    --varlen) values='none split' ;;
    -o | --output | -oe | --output-err) values='md csv json jsonl sql' list= ;;
    --plot)
        mapfile -t COMPREPLY < <(compgen -f -X '!*.svg' -- "$cur"; compgen -d -- "$cur")
        compopt -o filenames 2>/dev/null
        return
        ;;
    -b | --batch | -q | --queries | -k | --keys | -H | --heads | -g | --kv-heads | -d | \
        --head-dim | --dv | --value-dim | -T | --threads | -r | --repetitions | --min-time | --seed)
        return # a number
        ;;
    *)
        list=
        values='-m --model -b --batch -q --queries -k --keys -H --heads -g --kv-heads -d
            --head-dim --dv --value-dim --causal --window --softcap --alibi --varlen --stage -T
            --threads --impl --engine --isa -r --repetitions --min-time --seed --cold --verify
            --no-verify --no-memory --no-peaks -o --output -oe --output-err --plot --progress
            --no-progress --dry-run --list --version -h --help'
        ;;
    esac
    # of a list what follows the last comma
    local last=${cur##*,}
    [ -n "$list" ] || last=$cur
    mapfile -t COMPREPLY < <(compgen -P "${cur%"$last"}" -W "$values" -- "$last")
}
complete -F _attn_bench attn-bench
