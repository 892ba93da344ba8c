// SPDX-License-Identifier: MIT
//! What is refused, with which error and which words; and that nothing is written then.

mod common;

use attn::{Args, Error, Heads, Layer, Lengths, Matrix, Op, Projection, Slot, Stage, Strides};
use common::Problem;

fn problem() -> Problem {
    Problem::new(2, [4, 2], [3, 5], [8, 6])
}

/// Runs with these args; the output must be untouched.
fn refused<'a>(set: impl FnOnce(&mut Args<'a>)) -> Error {
    let p = problem();
    let mut out = vec![7.0; p.out().len()];
    let mut args = Args::new().unwrap();
    set(&mut args);
    let result = p.op().run(p.lengths(), &p.q, &p.k, &p.v, &mut out, Some(&mut args));
    assert!(out.iter().all(|&x| x == 7.0), "written in spite of {result:?}");
    result.unwrap_err()
}

#[track_caller]
fn assert_invalid(error: Error, words: &str) {
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn sizes_of_an_op() {
    assert!(matches!(Op::new(0, 1, 1, 1), Err(Error::Invalid(_))));
    assert!(matches!(Op::new(3, 2, 1, 1), Err(Error::Invalid(_))));
    assert!(matches!(Op::new(1 << 31, 1, 1, 1), Err(Error::Overflow(_))));
    assert!(matches!(Op::new(usize::MAX, 1, 1, 1), Err(Error::Overflow(_))));
    let mut op = Op::new(2, 1, 4, 4).unwrap();
    assert!(matches!(op.set_scale(f64::NAN), Err(Error::Invalid(_))));
    assert!(matches!(op.set_softcap(-1.0), Err(Error::Invalid(_))));
    assert!(matches!(op.set_threads(u32::MAX), Err(Error::Invalid(_))));
    assert!(matches!(op.set_window(Some(usize::MAX), None), Err(Error::Overflow(_))));
}

#[test]
fn slices_that_are_too_short() {
    let p = problem();
    let (op, n) = (p.op(), p.lengths());
    let short = |x: &[f32]| x[1..].to_vec();
    let mut out = p.out();
    let mut check = |q: &[f32], k: &[f32], v: &[f32], words| {
        assert_invalid(op.run(n, q, k, v, &mut out, None).unwrap_err(), words);
    };
    check(&short(&p.q), &p.k, &p.v, "q has 191 elements and needs 192");
    check(&p.q, &short(&p.k), &p.v, "k has 159 elements");
    check(&p.q, &p.k, &short(&p.v), "v has 119 elements");
    assert_invalid(op.run(n, &p.q, &p.k, &p.v, &mut out[1..], None).unwrap_err(), "out has 143");
    let huge = Lengths::new(usize::MAX, 1, 1);
    assert!(matches!(op.run(huge, &[], &[], &[], &mut [], None), Err(Error::Overflow(_))));
    let huge = Lengths::new(1 << 40, 1 << 40, 1);
    assert!(matches!(op.run(huge, &[], &[], &[], &mut [], None), Err(Error::Overflow(_))));
    op.run(Lengths::new(0, 3, 5), &[], &[], &[], &mut [], None).unwrap();
    op.run(Lengths::new(1, 3, 0), &p.q, &[], &[], &mut out, None).unwrap();
    assert!(out[..4 * 3 * 6].iter().all(|&x| x == 0.0), "no key: 0");
}

#[test]
fn optional_arrays_that_are_too_short() {
    let mut x = vec![0.0; 119];
    assert_invalid(refused(|args| args.set_weights(&mut x).unwrap()), "score output has 119");
    let error = refused(|args| args.set_scores(Stage::Raw, Heads::Mean, &mut x[..29]).unwrap());
    assert_invalid(error, "score output has 29 elements and needs 30");
    assert_invalid(refused(|args| args.set_lse(&mut x[..23]).unwrap()), "log-sum-exp has 23");
    let ids = [0; 10];
    assert_invalid(refused(|args| args.set_segments(&ids[5..], &ids).unwrap()), "ids of queries");
    assert_invalid(refused(|args| args.set_segments(&ids, &ids[1..]).unwrap()), "ids of keys");
    let mut memory = [0];
    assert_invalid(refused(|args| args.set_workspace(&mut memory).unwrap()), "has 1 bytes");
}

#[test]
fn shapes_that_do_not_fit() {
    let mask = &[1u8; 60];
    let set = |dims| move |args: &mut Args<'_>| args.set_mask_bool(mask, dims, None).unwrap();
    assert_invalid(refused(set([1, 2, 3, 5])), "extent 1 of the boolean mask");
    assert_invalid(refused(set([1, 1, 3, 6])), "extent 3 of the boolean mask");
    assert_invalid(refused(|args| args.set_alibi(&[1.0; 3]).unwrap()), "Hq = 4");
    assert_invalid(refused(|args| args.set_sinks(&[1.0; 5]).unwrap()), "Hq = 4");
    assert_invalid(refused(|args| args.set_positions(&[0]).unwrap()), "B = 2");
    let set = |args: &mut Args<'_>| args.set_key_range(None, Some(&[5, 6])).unwrap();
    assert_invalid(refused(set), "[0, 6), is not within [0, 5)");
    let error = refused(|args| {
        args.set_offsets_q(&[0, 1, 3]).unwrap();
        args.set_mask_bool(mask, [1, 1, 3, 5], None).unwrap();
    });
    assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
    // An unusable stride: the output would overlap itself.
    let strides = Strides::new([72, 18, 3, 1]);
    let error = refused(|args| args.set_strides(Slot::Out, Some(strides)).unwrap());
    assert_invalid(error, "out");
}

#[test]
fn empty_arrays_are_not_unset_ones() {
    let empty = |set: fn(&mut Args<'_>) -> attn::Result<()>, words: &str| {
        assert_invalid(refused(|args| set(args).unwrap()), words);
    };
    empty(|args| args.set_key_range(Some(&[]), None), "the key range has 0 elements and needs 2");
    empty(|args| args.set_key_range(None, Some(&[])), "the key range has 0");
    empty(|args| args.set_key_range(Some(&[]), Some(&[])), "the key range has 0");
    empty(|args| args.set_positions(&[]), "positions has 0 elements and needs 2");
    empty(|args| args.set_alibi(&[]), "ALiBi slopes has 0 elements and needs 4");
    empty(|args| args.set_sinks(&[]), "sinks has 0 elements and needs 4");
    empty(|args| args.set_workspace(&mut []), "the workspace has 0 bytes");

    let p = problem();
    let mut args = Args::new().unwrap();
    args.set_key_range(Some(&[]), Some(&[])).unwrap();
    args.set_positions(&[]).unwrap();
    p.op().run(Lengths::new(0, 3, 5), &[], &[], &[], &mut [], Some(&mut args)).unwrap();
    args.set_key_range(None, None).unwrap();
    args.set_positions(&[0, 0]).unwrap();
    p.op().run(p.lengths(), &p.q, &p.k, &p.v, &mut p.out(), Some(&mut args)).unwrap();
}

#[test]
fn what_setters_refuse() {
    let mask = [1u8; 14];
    let mut args = Args::new().unwrap();
    assert_invalid(args.set_mask_bool(&mask, [1, 1, 3, 5], None).unwrap_err(), "has 14 elements");
    let at = Strides::new([0, 0, 5, 1]);
    assert_invalid(args.set_mask_bool(&mask, [1, 1, 3, 5], Some(at)).unwrap_err(), "0 to 14");
    let at = Strides::at(4, [0, 0, -5, 1]);
    assert_invalid(args.set_mask_bool(&mask, [1, 1, 2, 5], Some(at)).unwrap_err(), "from -1");
    let dims = [1, usize::MAX, usize::MAX, 5];
    assert!(matches!(args.set_mask_bool(&mask, dims, None), Err(Error::Overflow(_))));
    assert!(matches!(args.set_mask_add(&[0.0], dims, Some(at)), Err(Error::Overflow(_))));
    assert_invalid(args.set_offsets_q(&[]).unwrap_err(), "offsets");
    assert_invalid(args.set_offsets_q(&[0, 3, 2]).unwrap_err(), "invalid");
    assert_invalid(args.set_alibi(&[f32::INFINITY]).unwrap_err(), "invalid");
    assert_invalid(args.set_key_range(Some(&[0]), Some(&[1, 2])).unwrap_err(), "lengths");
}

#[test]
fn strides_stay_within_the_slice() {
    let at = Strides::new([96, 24, 8, 1]); // q's own
    let beyond = Strides::new([97, 24, 8, 1]);
    let p = problem();
    let mut out = p.out();
    let mut args = Args::new().unwrap();
    args.set_strides(Slot::Q, Some(at)).unwrap();
    p.op().run(p.lengths(), &p.q, &p.k, &p.v, &mut out, Some(&mut args)).unwrap();
    let error = refused(|args| args.set_strides(Slot::Q, Some(beyond)).unwrap());
    assert_invalid(error, "strides reach from 0 to 192");
    let error = refused(|args| args.set_strides(Slot::K, Some(Strides::new([-1; 4]))).unwrap());
    assert_invalid(error, "k has 160 elements");
    let wraps = Strides::new([0, 0, 1 << (usize::BITS - 2), 1]); // times 4 is 0
    let error = refused(|args| args.set_strides(Slot::K, Some(wraps)).unwrap());
    assert_invalid(error, "k has 160 elements");
}

#[test]
fn explain_says_what_would_be_done() {
    let p = problem();
    let op = p.op();
    let text = op.explain(p.lengths(), &p.q, &p.k, &p.v, &p.out(), None).unwrap();
    assert!(text.contains("threads") && text.contains("workspace"), "{text}");
    let mut args = Args::new().unwrap();
    args.set_positions(&[1, 2, 3]).unwrap();
    let error = op.explain(p.lengths(), &p.q, &p.k, &p.v, &p.out(), Some(&args)).unwrap_err();
    assert_invalid(error, "positions of 3 items");
}

#[test]
fn layers() {
    let p = problem();
    let mut layer = Layer::new(&p.op(), 10, 7, 9).unwrap();
    let (w, n) = (vec![0.5; 1000], Lengths::new(2, 3, 5));
    let (x_q, x_kv, mut y) = (vec![1.0; 60], vec![1.0; 70], vec![7.0; 54]);
    assert_invalid(
        layer.set_weights(Projection::Q, Matrix::in_out(&w[..319]), None).unwrap_err(),
        "w has 319 elements",
    );
    assert_invalid(
        layer
            .set_weights(Projection::Q, Matrix::in_out(&w).with_row_stride(31), None)
            .unwrap_err(),
        "invalid",
    );
    assert_invalid(
        layer.set_weights(Projection::K, Matrix::out_in(&w), Some(&w[..15])).unwrap_err(),
        "the bias has 15 elements and needs 16",
    );
    let error = layer.run(n, &x_q, Some(&x_kv), &mut y, None).unwrap_err();
    assert!(matches!(error, Error::NotReady(_)), "{error:?}");
    for which in [Projection::Q, Projection::K, Projection::V] {
        layer.set_weights(which, Matrix::in_out(&w), None).unwrap();
    }
    assert_invalid(layer.run(n, &x_q, Some(&x_kv), &mut y, None).unwrap_err(), "without W_O");
    layer.set_weights(Projection::O, Matrix::in_out(&w), None).unwrap();
    assert_invalid(layer.run(n, &x_q, None, &mut y, None).unwrap_err(), "no x_kv");
    assert_invalid(layer.run(n, &x_q[1..], Some(&x_kv), &mut y, None).unwrap_err(), "x_q has 59");
    assert_invalid(
        layer.run(n, &x_q, Some(&x_kv[1..]), &mut y, None).unwrap_err(),
        "x_kv has 69",
    );
    assert_invalid(layer.run(n, &x_q, Some(&x_kv), &mut y[1..], None).unwrap_err(), "out has 53");

    let mut args = Args::new().unwrap();
    args.set_alibi(&[1.0]).unwrap();
    let error = layer.run(n, &x_q, Some(&x_kv), &mut y, Some(&mut args)).unwrap_err();
    assert_invalid(error, "ALiBi slopes of 1 heads for Hq = 4");
    let mut memory = vec![0; 64];
    let mut args = Args::new().unwrap();
    args.set_workspace(&mut memory).unwrap();
    let error = layer.run(n, &x_q, Some(&x_kv), &mut y, Some(&mut args)).unwrap_err();
    assert_invalid(error, "workspace");
    assert!(y.iter().all(|&y| y == 7.0), "nothing was written");

    let cache = Strides::new([40, 20, 8, 1]);
    let mut y = vec![0.0; 75];
    let error = layer.project(Projection::K, 2, 2, &x_kv, &mut y, Some(cache)).unwrap_err();
    assert_invalid(error, "y has 75 elements and its strides reach from 0 to 75");
}

#[test]
fn helpers() {
    assert!(matches!(attn::alibi_slopes(0), Err(Error::Invalid(_))));
    assert!(matches!(attn::alibi_slopes(usize::MAX), Err(Error::NoMemory(_))));
    let (mut o, mut lse) = ([0.0; 4], [0.0; 2]);
    assert!(attn::merge(3, &mut o, &mut lse, &[0.0; 6], &[0.0; 2]).is_err());
    assert!(attn::merge(2, &mut o, &mut lse, &[0.0; 3], &[0.0; 2]).is_err());
    assert!(attn::merge(2, &mut o, &mut lse, &[0.0; 4], &[0.0; 1]).is_err());
    assert!(attn::merge_sinks(1, 2, &mut o, &lse, &[0.0; 3]).is_err());
    assert!(attn::merge_sinks(1, 3, &mut o, &lse, &[0.0; 2]).is_err());
    assert!(attn::mask_dims(&[1; 5], 1).is_err());
    assert!(attn::version().starts_with("0."));
    assert!(attn::blas_info().unwrap().contains("BLAS"));
}
