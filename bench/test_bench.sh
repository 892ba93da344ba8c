#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests attn-bench as a program: results, formats, exit status, bad usage.
#
#   test_bench.sh ATTN-BENCH [LIBRARY]
#
# LIBRARY is test_wrong.c as a shared library, which stands in for libattn by LD_PRELOAD and
# errs on purpose; without it those tests are skipped. Prints TAP.

bench=$1
wrong=$2
if [ ! -x "$bench" ] || { [ -n "$wrong" ] && [ ! -f "$wrong" ]; }; then
    echo "usage: $0 ATTN-BENCH [LIBRARY]" >&2
    exit 2
fi
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
n=0
failed=0
quick='--min-time 0.001 -r 2 --no-peaks --no-memory'
once='--min-time 0.000001 -r 1 --no-peaks --no-memory' # right or wrong is all that matters

ok() { n=$((n + 1)); echo "ok $n $1"; }
not_ok() {
    n=$((n + 1)); failed=$((failed + 1))
    echo "not ok $n $1"
    cut -c1-160 "$tmp/err" "$tmp/out" 2>/dev/null | sed 's/^/# /' | head -12
}
skip() { n=$((n + 1)); echo "ok $n $1 # SKIP $2"; }
check() { # name, condition's status
    if [ "$2" -eq 0 ]; then ok "$1"; else not_ok "$1"; fi
}

# Runs with the arguments; keeps out, err and status.
run() { "$bench" "$@" >"$tmp/out" 2>"$tmp/err"; status=$?; }

# name, arguments: status 2, nothing on stdout, a sentence that leads to --help
usage() {
    name=$1; shift
    run "$@"
    [ "$status" -eq 2 ] && [ ! -s "$tmp/out" ] && grep -q 'try --help' "$tmp/err"
    check "usage: $name" $?
}

# name, status, arguments
status() {
    name=$1; want=$2; shift 2
    run "$@"
    [ "$status" -eq "$want" ]
    check "$name" $?
}

has_python=false
python3 -c '' 2>/dev/null && has_python=true
# name, Python on stdin: looks at $tmp/out
python() {
    if $has_python; then
        python3 - "$tmp" >"$tmp/python" 2>&1 || { cat "$tmp/python" >>"$tmp/err"; false; }
        check "$1" $?
    else
        skip "$1" "no python3"
    fi
}

# ------------------------------------------------------------------ bad usage
usage "unknown option" --bogus
usage "abbreviated option" --caus none
usage "a word" fused
usage "missing value" -q
usage "empty value" -q ''
usage "not a number" -q 12x
usage "zero" -q 0
usage "zero heads" -H 0
usage "negative" -q -5
usage "fraction" -q 1.5
usage "hexadecimal" -q 0x10
usage "blank" -q ' 5'
usage "overflow" -q 99999999999999999999
usage "too large" -q 2000000000
usage "empty item" -q 1,,2
usage "trailing comma" -q 1,
usage "falling range" -q 9-3
usage "endless range" -q '1-9*1'
usage "range without step" -q '1-9+0'
usage "range with rest" -q '1-9*2*2'
usage "too many values" -q 1-5000
usage "too many rows" -b 1-100 -q 1-100 -k 1-100
usage "unknown impl" --impl fast
usage "unknown model" -m gpt9
usage "unknown causal" --causal yes
usage "unknown isa" --isa sse9
usage "unknown stage" --stage all
usage "unknown format" -o xml
usage "heads not a multiple" -H 12 -g 5
usage "zero threads" -T 0
usage "too many threads" -T 100000
usage "zero repetitions" -r 0
usage "zero time" --min-time 0
usage "time nan" --min-time nan
usage "time inf" --min-time inf
usage "time hexadecimal" --min-time 0x1
usage "time with unit" --min-time 1s
usage "negative seed" --seed -1
usage "value for a switch" --cold=1
for window in 255 255: :0 -2:0 0:-2 1:2:3 a:0 '1: 0' +1:0 1,0 99999999999:0 0:2000000000 NONE; do
    usage "window $window" --window "$window"
done
for cap in x -1 1e9 1e-9 nan inf 0x1 5% '' '1,,2'; do usage "softcap '$cap'" --softcap "$cap"; done
usage "alibi" --alibi yes
for lengths in 0 0:5 5:0 +5 5+ 5: :5 5:6:7 5++6 -5 5-9 x splits split+5 2000000000 \
    600000000+600000000 99999999999999999999 5,,6; do
    usage "varlen $lengths" --varlen "$lengths"
done
usage "too many tokens to split" -b 2000 -q 1000000 --varlen split
usage "too many sequences" -b 100000 -q 1 --varlen split
usage "packed stage that nothing has" --impl unfused --stage softmax --varlen split
usage "stage that nothing has" --impl gemm --stage layer

# -------------------------------------------------------- what only looks
status "help" 0 --help
grep -q 'exit status: 0' "$tmp/out" || grep -q 'Exit status: 0' "$tmp/out"
check "help tells the exit status" $?
grep -q '2 h pairs (d + dv)' "$tmp/out"; check "help tells what is counted" $?
status "version" 0 --version
status "list" 0 --list
models=$(sed 1d "$tmp/out" | cut -d' ' -f1 | paste -sd, -)
status "every model of the list" 0 -m "$models" --dry-run
status "dry run" 0 -q '128-1024*2,100-102,7' --impl fused --dry-run -o csv
[ "$(sed 1d "$tmp/out" | cut -d, -f8 | paste -sd' ' -)" = '128 256 512 1024 100 101 102 7' ]
check "ranges" $?
grep -q '8 rows in 8 groups' "$tmp/err"; check "dry run tells rows and memory" $?
run -q 8 -q 16 --queries=24 --impl fused --dry-run -o csv
[ "$(sed 1d "$tmp/out" | cut -d, -f8 | paste -sd' ' -)" = '8 16 24' ]
check "repeated flags" $?
run -m bert-base -q 64 -T 1,2 --impl fused,gemm --dry-run -o csv
[ "$(sed 1d "$tmp/out" | cut -d, -f1,8,9,15 | paste -sd' ' -)" = \
    '"bert-base",64,64,1 "bert-base",64,64,2 "bert-base",64,64,1 "bert-base",64,64,2' ]
check "parts of a model replaced" $?
run -b 1,2 -q 8,16 --varlen 3+4:9,none,5 --impl fused --dry-run -o csv
[ "$(sed 1d "$tmp/out" | awk -F, '{ print $7","$8","$9","$(NF - 1) }' | sort | paste -sd' ' -)" = \
    '1,16,16,"none" 1,5,5,"5" 1,8,8,"none" 2,16,16,"none" 2,3,6,"3+4:9" 2,8,8,"none"' ]
check "lengths replace -b, -q and -k" $?
run -q 64 --causal none,top-left --window 3:0,none --softcap none,9 --alibi off,on --dry-run
grep -q '32 rows in 1 group,' "$tmp/err"; check "rules are measured together" $?
run -q 64 --stage run,layer --varlen none,split --window 3:0,none --impl fused --dry-run
grep -q '8 rows in 4 groups,' "$tmp/err"; check "but only on the same tensors" $?

# ------------------------------------------------------------ environment
status "too large for memory" 3 -q 1000000000 -k 1000000000
grep -q 'GiB' "$tmp/err" && [ ! -s "$tmp/out" ]; check "says how much it would take" $?
status "score matrix too large" 3 -q 4000000 -H 1 -d 1 --impl unfused
status "the same without the matrix" 0 -q 4000000 -H 1 -d 1 --impl fused --dry-run
status "sizes beyond 64 bits" 3 -b 1000000000 -q 1000000000 -H 16000 -d 16000 --impl fused
if [ -w /dev/full ]; then
    # shellcheck disable=SC2086
    "$bench" -q 16 $quick >/dev/full 2>"$tmp/err"; [ $? -eq 3 ]
    check "results that cannot be written" $?
fi
# shellcheck disable=SC2086
run -q 16 --engine vector --impl fused $quick
[ "$status" -eq 0 ] || [ "$status" -eq 3 ]; check "an engine is there or is an environment error" $?

# ---------------------------------------------------------------- results
# shellcheck disable=SC2086
status "all implementations agree" 0 -q 1,5,33,70 -k 1,40 -H 4 -g 1,2,4 -d 24 --dv 16 \
    --causal none,top-left,bottom-right --impl fused,unfused,naive,gemm $quick -r 1
# shellcheck disable=SC2086
status "all stages, threads" 0 -b 2 -q 40 -H 3 -g 3,1 -d 16 --causal none,top-left -T 1,2,3 \
    --stage run,layer,project,scores,softmax,values --impl fused,unfused,naive,gemm $quick -r 1
# shellcheck disable=SC2086
status "few tasks for the threads: rows, BLAS's own threads" 0 -q 1,70 -k 64 -H 1 -d 16 -T 2,3 \
    --impl fused,unfused,gemm $quick -r 1
# shellcheck disable=SC2086
status "layer over another length" 0 -q 9 -k 20 -H 2 -d 16 --stage layer,project $quick
# shellcheck disable=SC2086
status "rules agree" 0 -b 2 -q 1,9,70 -k 1,40 -H 6 -g 2 -d 24 --dv 16 \
    --causal none,top-left,bottom-right --window none,3:0,-1:4,9:-1,200:0 \
    --softcap none,1.5 --alibi off,on --impl fused,unfused,naive,gemm $once -o json
python "rules: visible pairs and flops, alignment, ratios" <<'END'
import json, sys
def pairs(r):
    left, right = (-1, -1) if r["window"] == "none" else map(int, r["window"].split(":"))
    off, n = 0 if r["causal"] == "top-left" else r["k"] - r["q"], 0
    for at in range(off, off + r["q"]):
        keys = range(r["k"])
        n += sum((r["causal"] == "none" or j <= at) and (left < 0 or at - left <= j)
                 and (right < 0 or j <= at + right) for j in keys)
    return n * r["b"]
rows = json.load(open(sys.argv[1] + "/out"))
assert len(rows) == 6 * 3 * 5 * 2 * 2 * 4
rule = lambda r: (r["q"], r["k"], r["causal"], r["window"], r["softcap"], r["alibi"])
unfused = {rule(r): r["min_ns"] for r in rows if r["impl"] == "unfused"}
seen = set()
for r in rows:
    assert r["pairs"] == pairs(r) and r["flops"] == 2 * 6 * r["pairs"] * (24 + 16), r
    assert abs(r["vs_unfused"] - unfused[rule(r)] / r["min_ns"]) < 1e-6 * r["vs_unfused"]
    assert r["softcap"] in (0, 1.5) and r["alibi"] in ("off", "on") and r["varlen"] == "none"
    seen.add(rule(r))
    if r["q"] <= 8: # decoding: the keys that any query sees
        assert r["kv_bytes"] == 4 * r["b"] * 2 * (24 + 16) * r["pairs"] / r["b"], r
assert len(seen) == 6 * 3 * 5 * 2 * 2
END
# shellcheck disable=SC2086
status "rules: all stages, threads" 0 -b 2 -q 40 -k 50 -H 4 -g 4,1 -d 16 --window none,7:3 \
    --softcap 2 --alibi on -T 1,2,3 --stage run,layer,project,scores,softmax,values \
    --impl fused,unfused,naive $once
# shellcheck disable=SC2086
status "packed sequences agree" 0 -b 5 -q 1,60 -k 30,60 -H 4 -g 1,4 -d 16 --dv 24 \
    --varlen split,3+0+70+1,0:5+40:0+9:70+100:30,1:30+1:50 --causal none,bottom-right \
    --window none,5:2 --stage run,layer,project --impl fused,unfused,naive,gemm -T 3 $once
# shellcheck disable=SC2086
status "packed sequences and every rule" 0 -b 4 -q 50 -H 6 -g 3 -d 16 --varlen split,20:90+7+60:3 \
    --causal none,top-left --window 9:9 --softcap 2 --alibi on --stage run,layer \
    --impl fused,unfused,naive --cold $once
packed="-b 6 -q 40 -k 40,50 -H 2 -d 8 --varlen split,20:90+7+60:3 --causal bottom-right $once"
# shellcheck disable=SC2086
run $packed -o json --seed 7
cp "$tmp/out" "$tmp/seed7"
# shellcheck disable=SC2086
run $packed -o json --seed 8
python "packed sequences: pairs, seeds" <<'END'
import json, sys
def lower(q, k): return sum(max(0, min(k, i + k - q + 1)) for i in range(q))
a, b = (json.load(open(sys.argv[1] + "/" + f)) for f in ("seed7", "out"))
assert len(a) == len(b) == 6
for r, s in zip(a, b):
    assert r["flops"] == 2 * 2 * r["pairs"] * 16 and r["verified"] is True
    if r["varlen"] == "split":
        assert r["pairs"] != s["pairs"] and (r["b"], r["q"]) == (6, 40)
        assert r["k"] != 40 or r["pairs"] > 6 * lower(40, 40) # equal lengths have the fewest
    else:
        assert r["pairs"] == s["pairs"] == lower(20, 90) + lower(7, 7) + lower(60, 3)
        assert (r["b"], r["q"], r["k"]) == (3, 29, 33)
END
# shellcheck disable=SC2086
run -b 3 -q 1 -k 500 -H 4 -g 2 -d 32 --varlen none,split --window none,99:0 --impl fused $quick \
    -o json
python "packed sequences and windows: bytes while decoding" <<'END'
import json, sys
rows = json.load(open(sys.argv[1] + "/out"))
assert [r["kv_bytes"] / (4 * 2 * 64) for r in rows[:3]] == [1500, 300, 1500]
assert 102 <= rows[3]["kv_bytes"] / (4 * 2 * 64) <= 300 and all(r["gbps"] > 0 for r in rows)
END
# shellcheck disable=SC2086
status "instruction sets" 0 -q 40 --isa base,avx2,avx512 $quick
# shellcheck disable=SC2086
status "cold" 0 -q 64 -H 1 --cold --impl fused,naive -o json $quick
python "cold is noted" <<'END'
import json, sys
rows = json.load(open(sys.argv[1] + "/out"))
assert rows and all(r["cold"] is True and r["verified"] is True for r in rows)
END

# ---------------------------------------------------------------- formats
# A name that has to be quoted in every format; \377 is no UTF-8.
odd="$tmp/$(printf "a'b\"c\\\\d|e f\377")"
mkdir "$odd" && ln -s "$(cd "$(dirname "$bench")" && pwd)/$(basename "$bench")" "$odd/bench"
odd_run() {
    # shellcheck disable=SC2086
    LC_ALL=de_DE.UTF-8 "$odd/bench" -q 16,32 -k 48 -H 4 -g 2 -d 8 --min-time 0.001 -r "$1" \
        --no-peaks --no-memory -o "$2" >"$tmp/out" 2>"$tmp/err"
    status=$?
}
odd_run 1 json
[ "$status" -eq 0 ]; check "json: status" $?
python "json: strict, a list of records, unknown is null" <<'END'
import json, sys
def refuse(x): raise ValueError(x)
rows = json.load(open(sys.argv[1] + "/out", encoding="utf-8"), parse_constant=refuse)
assert isinstance(rows, list) and len(rows) == 4
for r in rows:
    assert r["impl"] in ("fused", "unfused") and r["verified"] is True
    assert (r["b"], r["k"], r["h"], r["g"], r["d"], r["dv"]) == (1, 48, 4, 2, 8, 8)
    assert r["q"] in (16, 32) and r["threads"] == 1 and r["causal"] == "none"
    assert r["flops"] == 2 * 4 * r["q"] * 48 * 16
    assert abs(r["gflops"] - r["flops"] / r["min_ns"]) < 1e-6 * r["gflops"]
    assert r["spread"] is None and r["stddev_ns"] is None and r["model"] is None
    assert r["pct_sgemm"] is None and r["peak_added_mib"] is None
    assert len(r["samples_ns"]) == 1 and r["samples_ns"][0] == r["min_ns"] == r["median_ns"]
    assert "a'\\''b\"c\\d|e f\ufffd" in r["command"], r["command"]
    assert r["time"].endswith("Z") and len(r["time"]) == 20
    assert r["blas"] and r["version"] and r["schema"] == 1
assert list(rows[0])[:3] == ["model", "impl", "stage"]
assert list(rows[0])[-6:] == ["schema", "window", "softcap", "alibi", "varlen", "pairs"]
open(sys.argv[1] + "/names", "w").write("\n".join(rows[0]))
END
odd_run 2 jsonl
python "jsonl: one record a line" <<'END'
import json, sys
lines = open(sys.argv[1] + "/out", encoding="utf-8").read().splitlines()
rows = [json.loads(line) for line in lines]
assert len(rows) == 4
for r in rows:
    assert r["min_ns"] == min(r["samples_ns"]) <= r["median_ns"] and r["spread"] >= 0
END
odd_run 2 csv
python "csv: columns as in json" <<'END'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1] + "/out", encoding="latin-1", newline="")))
assert len(rows) == 4 and None not in rows[0]
assert "\n".join(rows[0]) == open(sys.argv[1] + "/names").read()
for r in rows:
    assert float(r["gflops"]) > 0 and "," not in r["gflops"] and r["verified"] == "1"
    assert r["pct_sgemm"] == "" and len(r["samples_ns"].split()) == 2
    assert "a'\\''b\"c\\d|e f" in r["command"]
END
odd_run 2 sql
python "sql: runs" <<'END'
import sqlite3, sys
db = sqlite3.connect(":memory:")
db.executescript(open(sys.argv[1] + "/out", encoding="latin-1").read())
rows = db.execute("SELECT impl, q, gflops, pct_sgemm, command FROM attn_bench").fetchall()
assert len(rows) == 4
for impl, q, gflops, pct, command in rows:
    assert gflops > 0 and pct is None and "a'\\''b\"c\\d|e f" in command
END
odd_run 2 md
[ "$(grep -c '^|' "$tmp/out")" -eq 6 ] && [ "$(wc -l <"$tmp/out")" -eq 6 ]
check "md: a table and nothing else" $?
head -1 "$tmp/out" | grep -q '| *q |' && ! head -1 "$tmp/out" | grep -q '| *k |'
check "md: only axes that vary" $?
# shellcheck disable=SC2086
run -q 16 --window 3:0,none --alibi on $quick
head -1 "$tmp/out" | grep -q '| window' && ! head -1 "$tmp/out" | grep -q 'softcap\|alibi\|varlen'
check "md: only rules that vary" $?
# shellcheck disable=SC2086
run -q 16 --softcap none,30 --impl fused $quick
[ "$(sed '1,2d;s/ *|$//;s/.* //' "$tmp/out" | paste -sd' ' -)" = '0 30.0' ]
check "md: numbers that vary" $?
# shellcheck disable=SC2086
run -q 16 $quick -o json -oe jsonl
python "-oe: the second format on stderr" <<'END'
import json, sys
rows = json.load(open(sys.argv[1] + "/out"))
err = [json.loads(l) for l in open(sys.argv[1] + "/err") if l.startswith("{")]
assert rows == err
END
# shellcheck disable=SC2086
run -q 16 --no-verify $quick -o json
python "--no-verify: neither right nor wrong" <<'END'
import json, sys
assert all(r["verified"] is None and r["max_err"] is None
           for r in json.load(open(sys.argv[1] + "/out")))
END
run -q 1,16 -k 512 -H 4 -g 2 --impl fused --min-time 0.001 -r 2 -o json
python "ceilings and memory are measured; decoding has a bandwidth" <<'END'
import json, sys
decode, prefill = json.load(open(sys.argv[1] + "/out"))
for r in (decode, prefill):
    assert 0 < r["sgemm_gflops"] and 0 < r["fma_gflops"] and 0 < r["pct_fma"]
    assert 0 < r["read_gbps"]
    assert r["peak_added_mib"] is None or 0 <= r["peak_added_mib"] < 512
assert decode["kv_bytes"] == 4 * 2 * 512 * 128 and decode["gbps"] > 0 and decode["pct_bw"] > 0
assert prefill["kv_bytes"] is None and prefill["gbps"] is None and prefill["pct_bw"] is None
END

# ---------------------------------------------------- a library that errs
preload() { # error, status, arguments
    error=$1; want=$2; shift 2
    # shellcheck disable=SC2086
    ATTN_BENCH_ERROR=$error LD_PRELOAD=$wrong "$bench" -q 48 -H 2 -d 16 --impl fused $quick "$@" \
        >"$tmp/out" 2>"$tmp/err"
    [ $? -eq "$want" ]
}
if [ -n "$wrong" ]; then
    preload none 0; check "the stand-in as it should be" $?
    for error in zero nothing nan nan-once last-row; do
        preload $error 1 -o json; check "wrong result: $error" $?
        grep -q '"verified": false' "$tmp/out"; check "wrong result: $error: in the row" $?
        grep -q 'WRONG' "$tmp/err"; check "wrong result: $error: said" $?
    done
    for rule in '' '--window 7:0' '--softcap 1' '--alibi on' '--varlen 9+30:40+4'; do
        # shellcheck disable=SC2086
        preload none 0 $rule; check "the stand-in with${rule:-out rules}" $?
    done
    for error in window softcap alibi offsets; do
        case $error in
        window) rule='--window 7:0' ;;
        softcap) rule='--softcap 1' ;;
        alibi) rule='--alibi on' ;;
        offsets) rule='--varlen 9+30:40+4' ;;
        esac
        # shellcheck disable=SC2086
        preload $error 1 $rule; check "wrong rule: $error" $?
        grep -q "WRONG.*${rule#--}\|WRONG.*alibi" "$tmp/err"; check "wrong rule: $error: said" $?
    done
    preload zero 0 --no-verify; check "wrong result: not looked at" $?
    preload status 3; check "a run that fails" $?
    preload status-late 3 -o json; check "a run that fails after a while" $?
    python "json is whole all the same" <<'END'
import json, sys
assert json.load(open(sys.argv[1] + "/out")) == []
END
    echo old >"$tmp/plot.svg"
    preload status-late 3 --plot "$tmp/plot.svg" && [ "$(cat "$tmp/plot.svg")" = old ]
    check "a run that fails leaves the plot that was there" $?
    preload none 0 --plot "$tmp/plot.svg" && ! grep -q old "$tmp/plot.svg" &&
        grep -q '</svg>' "$tmp/plot.svg"
    check "a run that does not replaces it" $?
    preload blas 3; check "BLAS unusable" $?
else
    skip "a library that errs" "not built"
fi

echo "1..$n"
[ "$failed" -eq 0 ] || { echo "# $failed of $n failed"; exit 1; }
