# SPDX-License-Identifier: MIT
"""How much memory a run adds, at its peak, to its inputs and output.

Each measurement has a process of its own, forked from one that has loaded the library and run
nothing. Started as a program, this is that process: a line of JSON in, a line of JSON out."""
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys

import cases
import measure
import peers

CHILD_SECONDS = 900  # then it hangs, and is ended


def _status(key):
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"no {key}")


def _settle():
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # not glibc


def _reset_peak():
    """The mark of the highest resident size starts again at the present one."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5\n")


def _measure(module, impl, case, threads, check):
    """In the child: what the first run of a fresh implementation adds."""
    module.set_threads(threads)
    tiny = case.tiny()
    measure.once(peers.build(module, impl, tiny, cases.Data(tiny), threads))
    data = cases.Data(case)
    # Once for nothing, so that the output is there, and the inputs in its layout.
    peers.build(module, impl, case, data, threads)
    _settle()
    before, files = _status("VmRSS"), _status("RssFile")
    run = peers.build(module, impl, case, data, threads)
    if run.prepare:
        run.prepare()
    _settle()
    _reset_peak()
    start = measure.now()
    run.call()
    elapsed = measure.now() - start
    added = _status("VmHWM") - before - (_status("RssFile") - files) - run.owned
    answer = {"peak_added_mib": max(0, added) / 2**20, "ns": elapsed}
    if check:
        out = measure.once(run) if run.prepare else run.result()
        answer["error"] = float(cases.Checker(data).error(out))
    return answer


def _child(module, request, write_end):
    try:
        case = cases.Case(**{**request["case"], "lengths": tuple(request["case"]["lengths"])})
        answer = _measure(module, request["impl"], case, request["threads"], request["check"])
    except measure.Skip as skip:
        answer = {"skip": str(skip)}
    except Exception as error:  # whatever a library throws
        answer = {"problem": f"{type(error).__name__}: {error}"[:300]}
    os.write(write_end, json.dumps(answer).encode())


def _serve(family, lib):
    module = peers.load(family, lib)
    for line in sys.stdin:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read_end)
            os.dup2(2, 1)  # stdout is for answers
            signal.alarm(CHILD_SECONDS)
            _child(module, json.loads(line), write_end)
            os._exit(0)
        os.close(write_end)
        with open(read_end, "rb") as file:
            answer = file.read()
        os.waitpid(child, 0)
        print(answer.decode() or json.dumps({"problem": "the process ended"}), flush=True)


class Prober:
    """Asks such processes, one a family, started at first need."""

    def __init__(self, lib):
        self.lib, self.servers = lib, {}

    def probe(self, impl, case, threads, check=False):
        """{"peak_added_mib", "ns"[, "error"]}, or {"skip"} or {"problem"}."""
        family = peers.FAMILY[impl]
        if family not in self.servers:
            self.servers[family] = subprocess.Popen(
                [sys.executable, __file__, family, str(self.lib)], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        server = self.servers[family]
        request = {"impl": impl, "case": cases.dataclasses.asdict(case), "threads": threads,
                   "check": check}
        try:
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            return json.loads(server.stdout.readline())
        except (OSError, ValueError):
            return {"problem": "the measuring process ended"}

    def close(self):
        for server in self.servers.values():
            server.stdin.close()
            server.wait()


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
