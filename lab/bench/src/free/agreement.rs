//! How similar two runs of a program are.

use evenkeel_sim::Share;
use evenkeel_sim::program::TaskPlan;

/// The share of the CPU time that goes to the same threads. Threads of one name are
/// interchangeable: they are compared in the order of what they got.
pub fn of_shares(plans: &[TaskPlan], real: &[Share], simulated: &[Share]) -> f64 {
    let parts = |shares: &[Share]| {
        let all: u64 = shares.iter().map(|share| share.ran_ns).sum();
        let part = |share: &Share| share.ran_ns as f64 / all.max(1) as f64;
        let mut parts: Vec<(&str, f64)> =
            plans.iter().zip(shares).map(|(plan, share)| (&*plan.name, part(share))).collect();
        parts.sort_by(|a, b| a.0.cmp(b.0).then(a.1.total_cmp(&b.1)));
        parts
    };
    let pairs = parts(real).into_iter().zip(parts(simulated));
    pairs.map(|((_, real), (_, simulated))| real.min(simulated)).sum()
}

/// The smaller number of migrations by the larger. That each thread is moved once more or less tells
/// nothing: where there are fewer than threads, their number counts as the larger.
pub fn of_migrations(real: &[Share], simulated: &[Share]) -> f64 {
    let (threads, real, simulated) = (real.len() as u64, migrations(real), migrations(simulated));
    let larger = real.max(simulated).max(threads).max(1);
    1.0 - real.abs_diff(simulated) as f64 / larger as f64
}

/// The migrations of all threads.
pub fn migrations(shares: &[Share]) -> u64 {
    shares.iter().map(|share| share.migrations).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(of: &[(u64, u64)]) -> Vec<Share> {
        of.iter()
            .map(|(ran_ns, migrations)| Share { ran_ns: *ran_ns, migrations: *migrations })
            .collect()
    }

    #[test]
    fn who_does_the_same_is_the_same() {
        let plans = ["a", "a", "b"].map(|name| TaskPlan::new(name, Vec::new()));
        let alike = |real: &[(u64, u64)], simulated: &[(u64, u64)]| {
            of_shares(&plans, &shares(real), &shares(simulated))
        };
        let real = [(10, 0), (30, 0), (60, 0)];
        assert!((alike(&real, &[(300, 0), (100, 0), (600, 0)]) - 1.0).abs() < 1e-12);
        // A fifth of the time is another thread's.
        assert!((alike(&real, &[(10, 0), (50, 0), (40, 0)]) - 0.8).abs() < 1e-12);
        assert_eq!(alike(&real, &[(0, 0); 3]), 0.0);
    }

    #[test]
    fn as_many_migrations() {
        let alike = |real, simulated| {
            let of = |all| shares(&[(0, all), (0, 0), (0, 0), (0, 0)]);
            of_migrations(&of(real), &of(simulated))
        };
        assert_eq!([alike(0, 0), alike(8, 10), alike(10, 8), alike(0, 30)], [1.0, 0.8, 0.8, 0.0]);
        assert_eq!([alike(0, 1), alike(3, 1)], [0.75, 0.5], "fewer than threads");
    }
}
