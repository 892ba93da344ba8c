// SPDX-License-Identifier: MIT
//! Attention in float64 loops, numbers to run it on, and a comparison that no NaN passes.
#![allow(dead_code)] // each test uses a part

use attn::Lengths;

/// Sizes and inputs, packed in layout BHLD; all numbers lie in [-1, 1].
pub struct Problem {
    pub b: usize,
    pub hq: usize,
    pub hk: usize,
    pub lq: usize,
    pub lk: usize,
    pub dk: usize,
    pub dv: usize,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

/// The same numbers everywhere.
pub fn noise(n: usize, mut seed: u32) -> Vec<f32> {
    let mut next = || {
        seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
        (seed >> 8) as f32 / 8388608.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

impl Problem {
    pub fn new(
        b: usize,
        [hq, hk]: [usize; 2],
        [lq, lk]: [usize; 2],
        [dk, dv]: [usize; 2],
    ) -> Self {
        let q = noise(b * hq * lq * dk, 1);
        let k = noise(b * hk * lk * dk, 2);
        let v = noise(b * hk * lk * dv, 3);
        Problem { b, hq, hk, lq, lk, dk, dv, q, k, v }
    }

    pub fn op(&self) -> attn::Op {
        attn::Op::new(self.hq, self.hk, self.dk, self.dv).unwrap()
    }

    pub fn lengths(&self) -> Lengths {
        Lengths::new(self.b, self.lq, self.lk)
    }

    pub fn out(&self) -> Vec<f32> {
        vec![f32::NAN; self.b * self.hq * self.lq * self.dv]
    }

    pub fn scores(&self) -> Vec<f32> {
        vec![f32::NAN; self.b * self.hq * self.lq * self.lk]
    }

    pub fn rows(&self) -> Vec<f32> {
        vec![f32::NAN; self.b * self.hq * self.lq]
    }
}

/// One score: which it is, and scale * (q . k).
pub struct Score {
    pub b: usize,
    pub h: usize,
    pub i: usize,
    pub j: usize,
    pub s: f64,
}

#[derive(Default)]
pub struct Expected {
    pub out: Vec<f64>,
    pub weights: Vec<f64>,
    pub lse: Vec<f64>,
    /// The largest absolute value of a finite score after the rules.
    pub largest: f64,
}

/// The plain loops; `rules` turns a score into what the softmax sees, -inf for invisible.
pub fn attend(p: &Problem, scale: f64, sinks: &[f32], rules: impl Fn(Score) -> f64) -> Expected {
    let mut e = Expected::default();
    for b in 0..p.b {
        for h in 0..p.hq {
            let g = b * p.hk + h / (p.hq / p.hk);
            for i in 0..p.lq {
                let q = &p.q[((b * p.hq + h) * p.lq + i) * p.dk..][..p.dk];
                let score = |j: usize| {
                    let k = &p.k[(g * p.lk + j) * p.dk..][..p.dk];
                    let dot: f64 = q.iter().zip(k).map(|(&x, &y)| x as f64 * y as f64).sum();
                    rules(Score { b, h, i, j, s: scale * dot })
                };
                let scores: Vec<f64> = (0..p.lk).map(score).collect();
                e.row(&scores, sinks.get(h).copied(), &p.v[g * p.lk * p.dv..], p.dv);
            }
        }
    }
    e
}

impl Expected {
    fn row(&mut self, scores: &[f64], sink: Option<f32>, v: &[f32], dv: usize) {
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let finite = scores.iter().filter(|s| s.is_finite());
        self.largest = finite.fold(self.largest, |m, s| m.max(s.abs()));
        let p = |s: &f64| if top == f64::NEG_INFINITY { 0.0 } else { (s - top).exp() };
        let exps: Vec<f64> = scores.iter().map(p).collect();
        let sum: f64 = exps.iter().sum();
        self.lse.push(top + sum.ln());
        let sum = sum + sink.map_or(0.0, |sink| (sink as f64 - top).exp());
        let weights: Vec<f64> =
            exps.iter().map(|e| if *e == 0.0 { 0.0 } else { e / sum }).collect();
        for d in 0..dv {
            self.out
                .push(weights.iter().enumerate().map(|(j, w)| w * v[j * dv + d] as f64).sum());
        }
        self.weights.extend(weights);
    }

    /// How far float32 may be off, to first order (Higham, chapter 3), with u = 2^-24 and
    /// numbers in [-1, 1]: a score is a sum of Dk products, scaled, with a few more
    /// roundings of its size for the rules; an error d of scores changes weights by the
    /// factor exp(2 d); exp, the sum of Lk and the division add (2 Lk + 16) u.
    pub fn tolerance(&self, p: &Problem, scale: f64) -> f64 {
        let u = 2f64.powi(-24);
        let d = (p.dk as f64 + 8.0) * u * (scale * p.dk as f64 + 2.0 * self.largest);
        (2.0 * d).exp_m1() + (2 * p.lk + 16) as f64 * u
    }
}

/// Infinities must be equal, all else within the tolerance, which no NaN is.
pub fn assert_close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (n, (&x, &y)) in got.iter().zip(want).enumerate() {
        let near = x as f64 == y || (x as f64 - y).abs() <= tolerance;
        assert!(near, "{what}[{n}] is {x}, {y} wanted within {tolerance:e}");
    }
}

/// Bit for bit, NaN and the sign of zero included.
pub fn assert_same_bits(what: &str, a: &[f32], b: &[f32]) {
    assert!(a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits())), "{what}");
}
