// SPDX-License-Identifier: MIT
//! Every option of an op against loops in float64, on both engines.

mod common;

use attn::{Args, Causal, Engine, Heads, Layout, Lengths, Slot, Stage, Strides};
use common::{assert_close, assert_same_bits, attend, noise, Expected, Problem, Score};

const HIDDEN: f64 = f64::NEG_INFINITY;
const ENGINES: [Engine; 2] = [Engine::Blas, Engine::Vector];

fn keep(visible: bool, s: f64) -> f64 {
    if visible {
        s
    } else {
        HIDDEN
    }
}

/// Runs on both engines and compares out, weights and log-sum-exp.
fn compare(
    what: &str,
    p: &Problem,
    e: &Expected,
    scale: f64,
    set_op: impl Fn(&mut attn::Op),
    set_args: impl Fn(&mut Args<'_>),
) {
    for engine in ENGINES {
        let mut op = p.op();
        op.set_engine(engine).unwrap();
        set_op(&mut op);
        let (mut out, mut weights, mut lse) = (p.out(), p.scores(), p.rows());
        let mut args = Args::new().unwrap();
        args.set_weights(&mut weights).unwrap();
        args.set_lse(&mut lse).unwrap();
        set_args(&mut args);
        op.run(p.lengths(), &p.q, &p.k, &p.v, &mut out, Some(&mut args)).unwrap();
        drop(args);
        let tolerance = e.tolerance(p, scale);
        assert_close(&format!("{what}, {engine:?}: out"), &out, &e.out, tolerance);
        assert_close(&format!("{what}, {engine:?}: weights"), &weights, &e.weights, tolerance);
        let lse_tolerance = tolerance + e.largest * 2f64.powi(-23);
        assert_close(&format!("{what}, {engine:?}: lse"), &lse, &e.lse, lse_tolerance);
    }
}

#[test]
#[should_panic(expected = "is NaN")]
fn comparing_fails_on_nan() {
    assert_close("x", &[f32::NAN], &[1.0], 1e9);
}

#[test]
#[should_panic(expected = "NaN wanted")]
fn comparing_fails_on_expected_nan() {
    assert_close("x", &[1.0], &[f64::NAN], 1e9);
}

#[test]
fn plain_and_threads() {
    let p = Problem::new(2, [4, 4], [33, 50], [16, 12]);
    let e = attend(&p, 0.25, &[], |x| x.s);
    compare("plain", &p, &e, 0.25, |_| (), |_| ());
    let run = |threads| {
        let mut out = p.out();
        let mut op = p.op();
        op.set_threads(threads).unwrap();
        op.run(p.lengths(), &p.q, &p.k, &p.v, &mut out, None).unwrap();
        out
    };
    assert_same_bits("threads change no bit", &run(1), &run(2));
}

#[test]
fn rules_of_an_op() {
    let p = Problem::new(2, [4, 2], [20, 31], [8, 8]);
    let off = 11; // Lk - Lq
    let causal = |x: Score, off: usize| keep(x.j <= x.i + off, x.s);
    let set = |c| {
        move |op: &mut attn::Op| {
            op.set_scale(1.5).unwrap().set_causal(c).unwrap();
        }
    };

    let e = attend(&p, 1.5, &[], |x| causal(x, 0));
    compare("top left", &p, &e, 1.5, set(Causal::TopLeft), |_| ());
    let e = attend(&p, 1.5, &[], |x| causal(x, off));
    compare("bottom right", &p, &e, 1.5, set(Causal::BottomRight), |_| ());

    let e = attend(&p, 1.5, &[], |x| keep(x.j + 3 >= x.i + off && x.j <= x.i + off + 2, x.s));
    let window = |op: &mut attn::Op| {
        op.set_scale(1.5).unwrap().set_window(Some(3), Some(2)).unwrap();
    };
    compare("window", &p, &e, 1.5, window, |_| ());

    let e = attend(&p, 1.5, &[], |x| keep((x.i + off) / 8 == x.j / 8, 2.0 * (x.s / 2.0).tanh()));
    let chunk = |op: &mut attn::Op| {
        op.set_scale(1.5).unwrap().set_chunk(8).unwrap().set_softcap(2.0).unwrap();
    };
    compare("chunks, softcap", &p, &e, 1.5, chunk, |_| ());
}

#[test]
fn masks() {
    let p = Problem::new(2, [2, 2], [9, 13], [8, 8]);
    let scale = 1.0 / 8f64.sqrt();
    // One mask an item, read from the end of its buffer: items go backwards.
    let bits: Vec<bool> = noise(2 * 9 * 13, 7).iter().map(|&x| x > -0.3).collect();
    let bytes: Vec<u8> = bits.iter().map(|&bit| 200 * bit as u8).collect();
    let backwards = Strides::at(9 * 13, [-(9 * 13), 0, 13, 1]);
    let seen = |x: &Score| bits[(1 - x.b) * 9 * 13 + x.i * 13 + x.j];
    let e = attend(&p, scale, &[], |x| keep(seen(&x), x.s));
    let dims = [2, 1, 9, 13];
    let set = |args: &mut Args<'_>, mask| {
        // Leaked: the closure's args borrow for any lifetime.
        let mask: &'static [u8] = Box::leak(mask);
        args.set_mask_bool(mask, dims, Some(backwards)).unwrap();
    };
    compare("bytes", &p, &e, scale, |_| (), |args| set(args, bytes.clone().into()));

    // An additive mask a query head, the same for all queries, joined with bools.
    let bias: &'static [f32] = Box::leak(noise(2 * 13, 8).into());
    let bits: &'static [bool] = Box::leak(bits[..9 * 13].into());
    let e = attend(&p, scale, &[], |x| {
        let bias = if x.j == 3 { HIDDEN } else { bias[x.h * 13 + x.j] as f64 };
        keep(bits[x.i * 13 + x.j], x.s + bias)
    });
    let mut bias = bias.to_vec();
    (bias[3], bias[16]) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    let bias: &'static [f32] = Box::leak(bias.into());
    let (dims, strides) = attn::mask_dims(&[2, 1, 13], 13).unwrap();
    compare(
        "both",
        &p,
        &e,
        scale,
        |_| (),
        |args| {
            args.set_mask_add(bias, dims, Some(strides)).unwrap();
            args.set_mask_bool(bits, [1, 1, 9, 13], None).unwrap();
        },
    );
}

#[test]
fn ranges_positions_and_empty_rows() {
    let mut p = Problem::new(3, [2, 1], [4, 20], [8, 8]);
    let scale = 1.0 / 8f64.sqrt();
    let (begin, end, pos) = ([0i64, 3, 5], [20i64, 11, 5], [2i64, 9, 0]);
    // What lies outside the ranges is never read.
    for b in 0..3 {
        for j in (0..20).filter(|&j| (j as i64) < begin[b] || j as i64 >= end[b]) {
            p.k[(b * 20 + j) * 8..][..8].fill(f32::NAN);
            p.v[(b * 20 + j) * 8..][..8].fill(f32::NAN);
        }
    }
    let mut clean = Problem::new(3, [2, 1], [4, 20], [8, 8]);
    clean.q.clone_from(&p.q);
    let e = attend(&clean, scale, &[], |x| {
        let j = x.j as i64;
        let inside = begin[x.b] <= j && j < end[x.b];
        keep(inside && j <= x.i as i64 + pos[x.b], x.s)
    });
    let set_op = |op: &mut attn::Op| {
        op.set_causal(Causal::TopLeft).unwrap();
    };
    compare("ranges", &p, &e, scale, set_op, |args| {
        args.set_key_range(Some(&begin), Some(&end)).unwrap();
        args.set_positions(&pos).unwrap();
    });
    assert_eq!(e.lse[2 * 2 * 4..], [HIDDEN; 8], "item 2 sees no key");
}

#[test]
fn alibi_and_sinks() {
    let p = Problem::new(1, [4, 4], [17, 17], [8, 8]);
    let scale = 1.0 / 8f64.sqrt();
    let slopes = attn::alibi_slopes(4).unwrap();
    let sinks = [0.5, f32::NEG_INFINITY, -1.0, 2.0];
    let biased = |x: Score| x.s - slopes[x.h] as f64 * x.i.abs_diff(x.j) as f64;
    let e = attend(&p, scale, &sinks, biased);
    compare(
        "alibi, sinks",
        &p,
        &e,
        scale,
        |_| (),
        |args| {
            args.set_alibi(&slopes).unwrap();
            args.set_sinks(&sinks).unwrap();
        },
    );

    // The same sinks afterwards.
    let without = attend(&p, scale, &[], biased);
    let mut o: Vec<f32> = without.out.iter().map(|&x| x as f32).collect();
    let lse: Vec<f32> = without.lse.iter().map(|&x| x as f32).collect();
    attn::merge_sinks(17, 8, &mut o, &lse, &sinks).unwrap();
    assert_close("merge_sinks", &o, &e.out, 1e-6);
}

#[test]
fn segments() {
    let p = Problem::new(1, [2, 2], [12, 12], [8, 8]);
    let ids: &'static [i32] = &[1, 1, 1, 2, 2, 2, 2, 9, 9, 9, 9, 9];
    let scale = 1.0 / 8f64.sqrt();
    let e = attend(&p, scale, &[], |x| keep(ids[x.i] == ids[x.j], x.s));
    compare("segments", &p, &e, scale, |_| (), |args| args.set_segments(ids, ids).unwrap());
}

/// Sequences of 3, 0 and 5 tokens in one buffer give what each gives alone.
#[test]
fn packed_sequences() {
    let (h, d) = (2, 8);
    let (q, k, v) = (noise(9 * h * d, 4), noise(9 * h * d, 5), noise(9 * h * d, 6));
    let offsets = [0, 3, 3, 8];
    let mut op = attn::Op::new(h, h, d, d).unwrap();
    op.set_layout(Layout::Blhd).unwrap().set_causal(Causal::TopLeft).unwrap();
    let mut out = vec![7.0; 9 * h * d];
    let mut lse = vec![7.0; h * 9];
    let mut args = Args::new().unwrap();
    args.set_offsets_q(&offsets).unwrap();
    args.set_offsets_k(&offsets).unwrap();
    args.set_lse(&mut lse).unwrap();
    op.run(Lengths::new(3, 9, 9), &q, &k, &v, &mut out, Some(&mut args)).unwrap();
    for (begin, end) in [(0, 3), (3, 8)] {
        let tokens = begin * h * d..end * h * d;
        let mut alone = vec![0.0; tokens.len()];
        let (q, k, v) = (&q[tokens.clone()], &k[tokens.clone()], &v[tokens.clone()]);
        let n = end - begin;
        op.run(Lengths::new(1, n, n), q, k, v, &mut alone, None).unwrap();
        let alone: Vec<f64> = alone.iter().map(|&x| x as f64).collect();
        assert_close("a sequence", &out[tokens], &alone, 1e-6);
    }
    assert_eq!(out[8 * h * d..], [7.0; 16], "no sequence has token 8");
}

/// One buffer (B, L, 3, H, D), as a fused projection leaves it, without a copy.
#[test]
fn strides_of_a_fused_buffer() {
    let p = Problem::new(2, [2, 2], [6, 6], [4, 4]);
    let (h, l, d) = (2, 6, 4);
    let mut fused = vec![0.0; 2 * l * 3 * h * d];
    for (n, tensor) in [&p.q, &p.k, &p.v].into_iter().enumerate() {
        for (index, &x) in tensor.iter().enumerate() {
            let (b, head, i, e) =
                (index / (h * l * d), index / (l * d) % h, index / d % l, index % d);
            fused[(((b * l + i) * 3 + n) * h + head) * d + e] = x;
        }
    }
    let e = attend(&p, 0.5, &[], |x| x.s);
    let (row, slot) = ((3 * h * d) as isize, h * d);
    let steps = [6 * row, d as isize, row, 1];
    let mut args = Args::new().unwrap();
    args.set_strides(Slot::Q, Some(Strides::new(steps))).unwrap();
    args.set_strides(Slot::K, Some(Strides::at(slot, steps))).unwrap();
    args.set_strides(Slot::V, Some(Strides::at(2 * slot, steps))).unwrap();
    let mut out = p.out();
    p.op().run(p.lengths(), &fused, &fused, &fused, &mut out, Some(&mut args)).unwrap();
    assert_close("fused", &out, &e.out, e.tolerance(&p, 0.5));
}

#[test]
fn scores_at_each_stage() {
    let p = Problem::new(1, [2, 2], [5, 5], [4, 4]);
    let mut op = p.op();
    op.set_causal(Causal::TopLeft).unwrap().set_softcap(1.0).unwrap();
    let (mut raw, mut capped, mut masked) = (p.scores(), p.scores(), p.scores());
    let (mut mean, mut out) = (vec![f32::NAN; 25], p.out());
    let mut args = Args::new().unwrap();
    args.set_scores(Stage::Raw, Heads::Each, &mut raw).unwrap();
    args.set_scores(Stage::Capped, Heads::Each, &mut capped).unwrap();
    args.set_scores(Stage::Masked, Heads::Each, &mut masked).unwrap();
    args.set_scores(Stage::Weights, Heads::Mean, &mut mean).unwrap();
    op.run(p.lengths(), &p.q, &p.k, &p.v, &mut out, Some(&mut args)).unwrap();

    let e = attend(&p, 0.5, &[], |x| keep(x.j <= x.i, x.s.tanh()));
    let tolerance = e.tolerance(&p, 0.5);
    let stage = |f: fn(Score) -> f64| {
        let collect = std::cell::RefCell::new(Vec::new());
        attend(&p, 0.5, &[], |x| {
            collect.borrow_mut().push(f(Score { ..x }));
            0.0
        });
        collect.into_inner()
    };
    assert_close("raw", &raw, &stage(|x| x.s), tolerance);
    assert_close("capped", &capped, &stage(|x| x.s.tanh()), tolerance);
    assert_close("masked", &masked, &stage(|x| keep(x.j <= x.i, x.s.tanh())), tolerance);
    let halves: Vec<f64> = (0..25).map(|n| (e.weights[n] + e.weights[25 + n]) / 2.0).collect();
    assert_close("mean of the heads", &mean, &halves, tolerance);
}

#[test]
fn two_parts_merge() {
    let p = Problem::new(1, [2, 2], [3, 40], [8, 8]);
    let part = |begin: i64, end: i64| {
        let (mut out, mut lse) = (p.out(), p.rows());
        let mut args = Args::new().unwrap();
        args.set_key_range(Some(&[begin]), Some(&[end])).unwrap();
        args.set_lse(&mut lse).unwrap();
        p.op().run(p.lengths(), &p.q, &p.k, &p.v, &mut out, Some(&mut args)).unwrap();
        (out, lse)
    };
    let ((mut o, mut lse), (o_part, lse_part)) = (part(0, 13), part(13, 40));
    attn::merge(8, &mut o, &mut lse, &o_part, &lse_part).unwrap();
    let e = attend(&p, 1.0 / 8f64.sqrt(), &[], |x| x.s);
    assert_close("merged", &o, &e.out, 1e-4);
    assert_close("merged lse", &lse, &e.lse, 1e-4);
}

/// No allocation is promised with a workspace; here, that it is taken and is enough.
#[test]
fn workspace_and_used_again() {
    let p = Problem::new(1, [2, 2], [70, 90], [16, 16]);
    let (mut out, mut again, op) = (p.out(), p.out(), p.op());
    op.run(p.lengths(), &p.q, &p.k, &p.v, &mut out, None).unwrap();
    let mut memory = vec![0xff; op.workspace_bytes(p.lengths(), None).unwrap()];
    let mut args = Args::new().unwrap();
    args.set_workspace(&mut memory).unwrap();
    op.run(p.lengths(), &p.q, &p.k, &p.v, &mut again, Some(&mut args)).unwrap();
    assert_same_bits("with a workspace", &out, &again);
    let mut lse = p.rows();
    let mut args = args.cleared();
    args.set_lse(&mut lse).unwrap();
    op.run(p.lengths(), &p.q, &p.k, &p.v, &mut again, Some(&mut args)).unwrap();
    assert!(lse.iter().all(|x| x.is_finite()), "a new borrow by old args");
    op.trim();
}
