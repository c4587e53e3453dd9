use make_model::*;
use rand::{SeedableRng, rngs::StdRng};
fn one(w: &Workload, s: &Setting, runs: u64) -> (f64, f64) {
    let (mut meds, mut means) = (vec![], vec![]);
    for seed in 0..runs {
        let mut r = StdRng::seed_from_u64(seed);
        let q = w.requests(s, &mut r);
        let p = run(&q, s, false);
        let o = run(&q, s, true);
        let im: Vec<f64> = p
            .responses
            .iter()
            .zip(&o.responses)
            .map(|(a, b)| a / b)
            .collect();
        meds.push(median(&im));
        means.push(mean(&im));
    }
    (mean(&meds), mean(&means))
}
fn main() {
    let base = Setting::baseline(5);
    let inf = |speed, mand| Setting {
        machines: None,
        speed,
        mandate: mand,
        ..base
    };
    for (m, me) in [
        (15.0, 20.0),
        (20.0, 28.0),
        (25.0, 35.0),
        (30.0, 40.0),
        (25.0, 60.0),
        (35.0, 60.0),
    ] {
        for (a, b) in [(8.0, 12.0), (15.0, 25.0), (25.0, 40.0)] {
            let w = Workload {
                times: LogNormal::of(m, me),
                single: LogNormal::of(a, b),
                ..Workload::paper()
            };
            let b0 = one(&w, &base, 6);
            let b8 = one(&w, &inf(8.0, 1.0), 6);
            let b16 = one(&w, &inf(16.0, 1.0), 6);
            let c16 = one(&w, &inf(16.0, 1.0 / 16.0), 6);
            println!(
                "{m}/{me} single {a}/{b}: base {:.2} mean {:.2}; 8x {:.2} 16x {:.2}; 16x scaled mandate {:.2}",
                b0.0, b0.1, b8.0, b16.0, c16.0
            );
        }
    }
}
