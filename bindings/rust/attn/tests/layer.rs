// SPDX-License-Identifier: MIT
//! Layers against loops in float64, and a key/value cache against one run over all.

mod common;

use attn::{Args, Causal, Layer, Lengths, Matrix, Op, Projection, Strides};
use common::{assert_close, attend, noise, Problem};

/// x W + b in float64, x (rows, e_in), W (e_in, n).
fn project(x: &[f64], w: &[f32], b: &[f32], n: usize) -> Vec<f64> {
    let e_in = w.len() / n;
    let entry = |row: &[f64], c: usize| {
        let products = row.iter().enumerate().map(|(r, x)| x * w[r * n + c] as f64);
        products.sum::<f64>() + b[c] as f64
    };
    x.chunks(e_in).flat_map(|row| (0..n).map(move |c| entry(row, c))).collect()
}

/// (B, L, H * D) as (B, H, L, D).
fn split(x: &[f64], [b, l, h, d]: [usize; 4]) -> Vec<f32> {
    let at = |n: usize| ((n / (h * l * d) * l + n / d % l) * h + n / (l * d) % h) * d + n % d;
    (0..b * h * l * d).map(|n| x[at(n)] as f32).collect()
}

fn small(n: usize, seed: u32) -> Vec<f32> {
    noise(n, seed).iter().map(|x| x / 4.0).collect()
}

/// Cross attention with grouped heads, other widths, biases and W_O, one matrix as PyTorch
/// stores it. Q, K and V are rounded to floats once more than in the library.
#[test]
fn projections_around_attention() {
    let (b, lq, lk, e_q, e_kv, e_out, dk, dv) = (2, 4, 6, 10, 8, 5, 4, 3);
    let widths = [(Projection::Q, e_q, 4 * dk), (Projection::K, e_kv, 2 * dk)];
    let more = [(Projection::V, e_kv, 2 * dv), (Projection::O, 4 * dv, e_out)];
    let mut layer = Layer::new(&Op::new(4, 2, dk, dv).unwrap(), e_q, e_kv, e_out).unwrap();
    let mut weights = Vec::new();
    for (seed, (which, e_in, n)) in widths.into_iter().chain(more).enumerate() {
        let (w, bias) = (small(e_in * n, seed as u32), small(n, 9));
        let transposed: Vec<f32> = (0..e_in * n).map(|x| w[x % e_in * n + x / e_in]).collect();
        if which == Projection::V {
            layer.set_weights(which, Matrix::out_in(&transposed), Some(&bias)).unwrap();
        } else {
            layer.set_weights(which, Matrix::in_out(&w), Some(&bias)).unwrap();
        }
        weights.push((w, bias, n));
    }
    let (x_q, x_kv) = (noise(b * lq * e_q, 20), noise(b * lk * e_kv, 21));
    let mut y = vec![f32::NAN; b * lq * e_out];
    let n = Lengths::new(b, lq, lk);
    layer.run(n, &x_q, Some(&x_kv), &mut y, None).unwrap();

    let wide = |x: &[f32]| x.iter().map(|&x| x as f64).collect::<Vec<_>>();
    let by = |x: &[f64], i: usize| project(x, &weights[i].0, &weights[i].1, weights[i].2);
    let mut p = Problem::new(b, [4, 2], [lq, lk], [dk, dv]);
    p.q = split(&by(&wide(&x_q), 0), [b, lq, 4, dk]);
    p.k = split(&by(&wide(&x_kv), 1), [b, lk, 2, dk]);
    p.v = split(&by(&wide(&x_kv), 2), [b, lk, 2, dv]);
    let e = attend(&p, 0.5, &[], |x| x.s);
    let joined: Vec<f64> = split(&e.out, [b, 4, lq, dv]).iter().map(|&x| x as f64).collect();
    let want = by(&joined, 3);
    // All sums have at most 12 terms below 1, in four steps.
    let tolerance = 8.0 * e.tolerance(&p, 0.5);
    assert_close("y", &y, &want, tolerance);

    let mut again = vec![f32::NAN; y.len()];
    let mut memory = vec![0; layer.workspace_bytes(n, None).unwrap()];
    let mut args = Args::new().unwrap();
    args.set_workspace(&mut memory).unwrap();
    layer.run(n, &x_q, Some(&x_kv), &mut again, Some(&mut args)).unwrap();
    common::assert_same_bits("with a workspace", &y, &again);

    layer.remove_weights(Projection::O).unwrap();
    assert!(layer.run(n, &x_q, Some(&x_kv), &mut again, None).is_err());
}

/// A prompt of 5 tokens, then one at a time, through a cache of 9: as one run over all.
#[test]
fn prefill_and_decode() {
    let (h, d, room, total) = (2, 8, 9, 8);
    let e = h * d;
    let mut op = Op::new(h, h, d, d).unwrap();
    op.set_causal(Causal::BottomRight).unwrap();
    let mut layer = Layer::new(&op, e, e, e).unwrap();
    let matrices: Vec<_> = (0..4).map(|seed| small(e * e, 30 + seed)).collect();
    let projections = [Projection::Q, Projection::K, Projection::V, Projection::O];
    for (which, w) in projections.into_iter().zip(&matrices) {
        layer.set_weights(which, Matrix::in_out(w), None).unwrap();
    }
    let x = noise(total * e, 40);
    let mut whole = vec![0.0; total * e];
    layer.run(Lengths::new(1, total, total), &x, None, &mut whole, None).unwrap();

    let steps = [(room * e) as isize, (room * d) as isize, d as isize, 1];
    let (mut k, mut v) = (vec![f32::NAN; room * e], vec![f32::NAN; room * e]);
    let mut y = vec![0.0; total * e];
    let mut filled = 0;
    for new in [5, 1, 1, 1] {
        let tokens = filled * e..(filled + new) * e;
        let (mut q, mut heads) = (vec![0.0; new * e], vec![0.0; new * e]);
        let at = Some(Strides::at(filled * d, steps));
        let per_head = [(new * e) as isize, (new * d) as isize, d as isize, 1];
        let x = &x[tokens.clone()];
        layer.project(Projection::K, 1, new, x, &mut k, at).unwrap();
        layer.project(Projection::V, 1, new, x, &mut v, at).unwrap();
        layer.project(Projection::Q, 1, new, x, &mut q, Some(Strides::new(per_head))).unwrap();
        filled += new;
        let mut args = Args::new().unwrap();
        args.set_key_range(None, Some(&[filled as i64])).unwrap();
        op.run(Lengths::new(1, new, room), &q, &k, &v, &mut heads, Some(&mut args)).unwrap();
        // (H, L, D) to (L, H * D)
        let joined: Vec<f32> =
            (0..new * e).map(|n| heads[(n / d % h * new + n / e) * d + n % d]).collect();
        layer.project(Projection::O, 1, new, &joined, &mut y[tokens], None).unwrap();
    }
    let want: Vec<f64> = whole.iter().map(|&y| y as f64).collect();
    // The same sums in another order: 16 terms below 1 in each of four steps.
    assert_close("decoded", &y, &want, 16.0 * 4.0 * 2f64.powi(-23));
}
