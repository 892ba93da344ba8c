// SPDX-License-Identifier: MIT
//! One op, one layer and many threads.

mod common;

use attn::{Args, Layer, Lengths, Matrix, Op, Projection};
use common::{assert_same_bits, Problem};

fn is_send_and_sync<T: Send + Sync>() {}

#[test]
fn handles_may_cross_threads() {
    is_send_and_sync::<Op>();
    is_send_and_sync::<Layer>();
    is_send_and_sync::<Args<'static>>();
    is_send_and_sync::<attn::Error>();
}

#[test]
fn runs_of_one_op_at_once() {
    let p = Problem::new(1, [4, 2], [40, 60], [16, 16]);
    let op = p.op();
    let mut alone = p.out();
    op.run(p.lengths(), &p.q, &p.k, &p.v, &mut alone, None).unwrap();
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                for _ in 0..20 {
                    let (mut out, mut lse) = (p.out(), p.rows());
                    let mut args = Args::new().unwrap();
                    args.set_lse(&mut lse).unwrap();
                    op.run(p.lengths(), &p.q, &p.k, &p.v, &mut out, Some(&mut args)).unwrap();
                    assert_same_bits("one of many", &out, &alone);
                    op.trim();
                }
            });
        }
    });
}

#[test]
fn runs_of_one_layer_at_once() {
    let mut layer = Layer::new(&Op::new(2, 2, 8, 8).unwrap(), 16, 16, 16).unwrap();
    let w = common::noise(256, 1);
    for which in [Projection::Q, Projection::K, Projection::V, Projection::O] {
        layer.set_weights(which, Matrix::out_in(&w), None).unwrap();
    }
    let (x, n) = (common::noise(20 * 16, 2), Lengths::new(1, 20, 20));
    let run = || {
        let mut y = vec![0.0; 20 * 16];
        layer.run(n, &x, None, &mut y, None).unwrap();
        y
    };
    let alone = run();
    std::thread::scope(|s| {
        let others: Vec<_> = (0..8).map(|_| s.spawn(run)).collect();
        for other in others {
            assert_same_bits("one of many", &other.join().unwrap(), &alone);
        }
    });
}
