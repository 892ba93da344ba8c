# SPDX-License-Identifier: MIT
"""Everyone who is measured: families (libraries) and their forms."""
import importlib

FAMILIES = {  # name: its module, in the order of the report
    "libattn": "peer_attn",
    "PyTorch": "peer_torch",
    "ONNX Runtime": "peer_ort",
    "OpenVINO": "peer_openvino",
    "NumPy": "peer_numpy",
}
FORMS = {  # in the order of the report; each module says what its forms do
    "libattn": ["attn-blas", "attn-vector"],
    "PyTorch": ["torch", "torch-folded", "torch-loop", "torch-flex", "torch-mha",
                "torch-prepacked"],
    "ONNX Runtime": ["ort-attention", "ort-attention-folded", "ort-mha", "ort-gqa", "ort-loop"],
    "OpenVINO": ["openvino", "openvino-folded", "openvino-loop", "openvino-cache"],
    "NumPy": ["numpy"],
}
FAMILY = {form: family for family, forms in FORMS.items() for form in forms}
IMPLS = list(FAMILY)


def is_ours(impl):
    return FAMILY[impl] == "libattn"


def load(family, lib):
    """The family's module; ImportError or OSError when it cannot be had. lib: libattn's path."""
    module = importlib.import_module(FAMILIES[family])
    if family == "libattn":
        module.load(lib)
    return module


def build(module, impl, case, data, threads):
    """A measure.Run of this form, with its data; measure.Skip when the form is not for the case."""
    run = module.FORMS[impl](case, data, threads)
    run.keep = (run.keep, data)
    return run
