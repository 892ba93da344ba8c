# SPDX-License-Identifier: MIT
"""Timing, interleaved: knows nothing of what it times."""
import dataclasses
import gc
import time

now = time.perf_counter_ns

VISIT_NS = 2_000_000  # short calls are repeated within a visit for about so long ...
VISIT_CALLS = 50      # ... or so often
MIN_VISITS = 3
SLOW = 3.0            # slower than the fastest by this: no more than MIN_VISITS visits
QUIET_NS = 2_000_000  # one look at whether any thread of ours still runs
QUIET_SHARE = 0.1
QUIET_LOOKS = 100


class Skip(Exception):
    """This implementation does not do this case, or not here; the text says why."""


@dataclasses.dataclass
class Run:
    """Something to time: built, checked, ready to be called again and again."""

    call: object                # () -> ignored
    result: object              # () -> the output as (B, Hq, L, D) or (B, L, E), after a call
    prepare: object = None      # () -> ignored; before a visit, not timed
    between: object = None      # () -> ignored; after the untimed call, not timed
    calls: int = VISIT_CALLS    # most timed calls of a visit
    owned: int = 0              # bytes of inputs or output that the library holds itself
    keep: tuple = ()            # what must live as long
    samples: list = dataclasses.field(default_factory=list)  # ns of every timed call
    visits: list = dataclasses.field(default_factory=list)   # ns of the best call of each visit


def wait_quiet():
    """Until no thread of this process spins any more: thread pools go on looking for work after
    a call, up to tens of milliseconds, and would take a core from whoever is timed next."""
    for _ in range(QUIET_LOOKS):
        cpu, wall = time.process_time_ns(), now()
        time.sleep(QUIET_NS / 1e9)
        if time.process_time_ns() - cpu <= QUIET_SHARE * (now() - wall):
            return


def once(run):
    """The output, after the calls of a visit."""
    if run.prepare:
        run.prepare()
        run.call()
    if run.between:
        run.between()
    run.call()
    return run.result()


def visit(run):
    """One untimed call, then timed ones of the same implementation directly after it."""
    if run.prepare:
        run.prepare()
    wait_quiet()
    call, samples, spent = run.call, [], 0
    call()
    if run.between:
        run.between()
    while not samples or (spent < VISIT_NS and len(samples) < run.calls):
        start = now()
        call()
        samples.append(now() - start)
        spent += samples[-1]
    run.samples += samples
    run.visits.append(min(samples))


def interleave(runs, repetitions, seconds, random):
    """Visit all runs (a dict) in a new random order each time, so that whatever changes on the
    machine changes for all of them."""
    start, names = now(), list(runs)
    gc.collect()
    gc.disable()
    try:
        for repetition in range(repetitions):
            if repetition >= MIN_VISITS:
                if now() - start > seconds * 1e9:
                    break
                fastest = min(min(r.visits) for r in runs.values())
                names = [n for n in runs if min(runs[n].visits) <= SLOW * fastest]
            for name in random.sample(names, len(names)):
                visit(runs[name])
    finally:
        gc.enable()
