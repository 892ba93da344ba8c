// SPDX-License-Identifier: MIT
//! Multi-head self-attention in Rust: 4 tokens of width 8, 2 heads of 4.
use attn::{Layer, Lengths, Matrix, Op, Projection};

const L: usize = 4;
const E: usize = 8;
const HEADS: usize = 2;
const HEAD_DIM: usize = E / HEADS;

/// Eighths between -5/8 and 5/8: the same floats in every language.
fn fill(n: usize, seed: usize) -> Vec<f32> {
    (1..=n)
        .map(|i| ((i * seed % 11) as f32 - 5.0) / 8.0)
        .collect()
}

fn main() -> attn::Result<()> {
    let op = Op::new(HEADS, HEADS, HEAD_DIM, HEAD_DIM)?;
    let mut layer = Layer::new(&op, E, E, E)?;
    let all = [Projection::Q, Projection::K, Projection::V, Projection::O];
    for (n, which) in all.into_iter().enumerate() {
        layer.set_weights(which, Matrix::in_out(&fill(E * E, n + 2)), None)?;
    }
    let mut y = [0.0; L * E];
    layer.run(Lengths::new(1, L, L), &fill(L * E, 7), None, &mut y, None)?;
    for row in y.chunks(E) {
        let texts: Vec<_> = row.iter().map(|y| format!("{y:9.6}")).collect();
        println!("{}", texts.join(" "));
    }
    Ok(())
}
