#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The comparison: started by bench/compare/run, which sets everything up. options.py has the
command line; README.md says what is measured and how.

Exit status: 0 all right, 1 someone's result is wrong, 2 bad usage, 3 nothing could be measured."""
import pathlib
import random
import sys

import cases
import machine
import measure
import memory
import options as command_line
import peers
import report
import stages

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEMORY_SHARE = 0.6  # of what is free: a case that needs more is left out


def say(text):
    print(f"compare: {text}", file=sys.stderr, flush=True)


# ------------------------------------------------------------------ measuring

def load(options):
    """The libraries that are here: family -> module. libattn must be."""
    modules, versions = {}, {}
    for family in peers.FAMILIES:
        forms = [f for f in peers.FORMS[family] if not options.impl or options.impl.search(f)]
        if not forms:
            continue
        try:
            modules[family] = peers.load(family, options.lib)
            versions |= modules[family].versions()
        except (ImportError, OSError) as error:
            if family == "libattn":
                say(f"libattn cannot be loaded: {error}")
                sys.exit(3)
            say(f"going on without {family}: {error}")
    return modules, versions


def memory_needed(case, impl):
    """Bytes of scores of those who keep the whole matrix of a head."""
    whole = peers.FAMILY[impl] in ("ONNX Runtime", "NumPy")
    return 4 * case.L * case.K if whole else 0


def memory_free():
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":") for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return float("inf")


class Comparison:
    """All cases at all thread counts; collects records and what went wrong."""

    def __init__(self, options, modules):
        self.options, self.modules = options, modules
        self.random = random.Random(options.seed)
        self.prober = None if options.no_memory else memory.Prober(options.lib)
        self.records, self.wrong = [], []
        self.impls = [i for i in peers.IMPLS if peers.FAMILY[i] in modules
                      and (not options.impl or options.impl.search(i))
                      and not (options.quick and i == "torch-flex")]  # compiling takes a minute

    def build(self, case, data, threads):
        runs = {}
        for impl in self.impls:
            try:
                runs[impl] = peers.build(self.modules[peers.FAMILY[impl]], impl, case, data,
                                         threads)
            except measure.Skip:
                pass
            except Exception as error:  # whatever a library throws: the others can still run
                say(f"{case.name}: {impl}: {type(error).__name__}: {str(error)[:300]}")
        return runs

    def check(self, case, runs, data, checker, when):
        """Errors of everyone, each over an output that was spoilt before: it is shared."""
        errors = {}
        for impl, run in list(runs.items()):
            data.spoil()
            try:
                error = float(checker.error(measure.once(run)))
            except Exception as problem:
                say(f"{case.name}: {impl}: {type(problem).__name__}: {str(problem)[:300]}")
                del runs[impl]
                continue
            errors[impl] = error
            if not error <= cases.TOLERANCE:
                self.wrong.append(f"{case.name}: {impl}: WRONG {when}, error {error:.1e} of the "
                                  f"largest result")
                say(self.wrong[-1])
        return errors

    def measured(self, case, threads):
        """Time, interleaved; then memory, each in a process of its own."""
        data = cases.Data(case)
        runs, checker = self.build(case, data, threads), cases.Checker(data)
        errors = self.check(case, runs, data, checker, "before timing")
        if runs:
            seconds = self.options.time / (2 if case.sweep else 1)
            measure.interleave(runs, self.options.reps, seconds, self.random)
            after = self.check(case, runs, data, checker, "after timing")
            errors = {impl: max(errors[impl], error) for impl, error in after.items()}
        for impl, run in runs.items():
            mib = None
            if self.prober and not case.sweep:
                mib = self.prober.probe(impl, case, threads).get("peak_added_mib")
            self.records.append(report.record(case, impl, threads, run, mib, errors[impl],
                                              cases.TOLERANCE))

    def measured_once(self, case, threads):
        """Memory, and the time of that one run."""
        free = MEMORY_SHARE * memory_free()
        large = [i for i in self.impls if memory_needed(case, i) > free]
        if large:
            say(f"{case.name}: left out, for they need {4 * case.L * case.K / 2**30:.0f} GiB: "
                + ", ".join(dict.fromkeys(peers.FAMILY[i] for i in large)))
        for impl in self.impls if self.prober else []:
            if impl in large:
                continue
            answer = self.prober.probe(impl, case, threads, check=True)
            if "ns" not in answer:
                if "problem" in answer:
                    say(f"{case.name}: {impl}: {answer['problem']}")
                continue
            run = measure.Run(None, None, samples=[answer["ns"]], visits=[answer["ns"]])
            self.records.append(report.record(case, impl, threads, run, answer["peak_added_mib"],
                                              answer["error"], cases.TOLERANCE))
            if not self.records[-1]["ok"]:
                self.wrong.append(f"{case.name}: {impl}: WRONG")

    def run(self, chosen):
        for threads in self.options.threads:
            for module in self.modules.values():
                module.set_threads(threads)
            for i, case in enumerate(chosen):
                say(f"{threads} thread{'s' * (threads > 1)}, {i + 1} of {len(chosen)}: "
                    f"{case.name}")
                (self.measured_once if case.once else self.measured)(case, threads)
        if self.prober:
            self.prober.close()


def measure_all(options):
    """(records, what was wrong)"""
    chosen = cases.choose(options.cases and options.cases.pattern, options.quick)
    with_stages = not options.cases or options.cases.search("stages")
    if not chosen and not with_stages:
        say("no case matches; see --list")
        sys.exit(2)
    context = machine.context(ROOT, options.seed)
    if context["openblas_coretype"]:
        say(f"OPENBLAS_CORETYPE={context['openblas_coretype']} is set: OpenBLAS, libattn's and "
            "NumPy's, uses that core's kernels")
    if context["load"] > 0.5:
        say(f"load average {context['load']:.1f}: others use this machine")
    ceilings = machine.ceilings(options.attn_bench, options.threads)
    modules, versions = load(options)
    comparison = Comparison(options, modules)
    comparison.run(chosen)
    records = comparison.records
    if with_stages:
        records += stages.measure(options.lib, options.shim, options.attn_bench, options.quick)
    ceilings = machine.larger(ceilings, machine.ceilings(options.attn_bench, options.threads))
    report.add_ratios(records)
    report.add_context(records, context, versions, ceilings)
    return records, comparison.wrong


def main(arguments):
    options = command_line.parse(arguments)
    if options.list:
        for case in cases.choose(options.cases and options.cases.pattern, options.quick):
            print(case.name)
        print("implementations:", *peers.IMPLS)
        return 0
    wrong = []
    if options.files:
        records = report.merge([report.read_json(path) for path in options.files])
    else:
        records, wrong = measure_all(options)
    if not records:
        say("nothing was measured")
        return 3
    text = report.markdown(records)
    print(text)
    if options.md:
        pathlib.Path(options.md).write_text(text, encoding="utf-8")
    if options.json:
        report.write_json(options.json, records)
    if options.plots:
        import plots
        for path in plots.draw(records, pathlib.Path(options.plots),
                               ".svg" if options.svg else ".png"):
            say(f"wrote {path}")
    for line in wrong:
        say(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
