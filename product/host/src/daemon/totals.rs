//! What is counted over all programs, and whether programs that join are balanced: for the metrics.

use std::collections::BTreeMap;

use super::lost::{CAUSES, lost_ns};
use super::programs::Programs;
use super::statistics::Statistics;
use crate::clock::{monotonic_ns, own_cpu_ns};
use crate::proof::Proven;
use crate::tell::Teller;

/// The names of what is known of a gain, as in JSON.
const PROVEN: [(Proven, &str); 5] = [
    (Proven::Nothing, "nothing"),
    (Proven::Unverified, "unverified"),
    (Proven::Measuring, "measuring"),
    (Proven::Gains, "gains"),
    (Proven::Withdrawn, "withdrawn"),
];

impl Programs {
    /// Reads what the CPUs lost, unless a round of programs has read it since the last call.
    pub fn look_at_cpus(&mut self) {
        let observer = self.balancer.observer();
        if observer.last().at_ns == self.looked_ns
            && let Err(why) = observer.read()
        {
            tracing::debug!("what the CPUs lost is not known now: {why}");
        }
        self.looked_ns = observer.last().at_ns;
    }

    /// Why programs that join are not balanced; `None`: they are, or are not meant to be.
    pub fn not_ready(&self) -> Option<String> {
        let is_ready = self.settings.options.dry_run || self.balancer.can_move();
        let why = "tasks are only observed, since no journal can be written: see the daemon's log";
        (!is_ready).then(|| why.to_owned())
    }

    /// Tells the daemons of this node of the job that this balancer is for: it is one program.
    pub fn tell(&self, teller: &mut Teller) {
        let totals = self.joined.keys().find_map(|program| self.balancer.totals(*program));
        if let Some(totals) = totals {
            teller.tell(totals.gain());
        }
    }

    /// All figures.
    pub fn statistics(&mut self) -> Statistics {
        let mut statistics = self.left.clone();
        statistics.programs = self.joined.len() as u64;
        statistics.observed = self.observations.count() as u64;
        statistics.run_programs = self.told.count() as u64;
        let now_ns = monotonic_ns();
        let told = PROVEN.map(|(proven, name)| (name, self.told.count_of(proven, now_ns) as u64));
        statistics.run_gains = BTreeMap::from(told);
        statistics.run_paces = self.told.paces(now_ns);
        statistics.own_cpu_us = own_cpu_ns() / 1000;
        statistics.exact = u64::from(self.balancer.observer().accounting().is_exact());
        statistics.moving = u64::from(!self.settings.options.dry_run && self.balancer.can_move());
        let last = self.balancer.observer().last().clone();
        self.lost.update(last.at_ns, &last.cpus);
        statistics.all_cpus_lost_us = self.lost.total_us();
        statistics.worst_cpu_lost_milli = self.lost.worst_milli().clone();
        let joined = self.joined.keys().filter_map(|program| last.tasks_of(*program));
        statistics.tasks = joined.map(|tasks| tasks.len() as u64).sum();
        statistics.cpus = last.cpus.len() as u64;
        let lost_us = |cpu| CAUSES.into_iter().zip(lost_ns(cpu).map(|ns| ns / 1000)).collect();
        statistics.lost_us = last.cpus.iter().map(|(cpu, lost)| (*cpu, lost_us(lost))).collect();
        // Also what no program has: a series that is there at all times can be asked for changes.
        statistics.gains = BTreeMap::from(PROVEN.map(|(_, name)| (name, 0)));
        for program in self.joined.keys() {
            let Some(totals) = self.balancer.totals(*program) else { continue };
            statistics.add(totals);
            let gain = totals.gain();
            if let Some(&(_, name)) = PROVEN.iter().find(|(proven, _)| *proven == gain.proven) {
                *statistics.gains.entry(name).or_default() += 1;
            }
            // What was withdrawn has no effect on the pace any more.
            if let Some(ratio) = gain.ratio.filter(|_| gain.proven != Proven::Withdrawn) {
                statistics.pace_milli.insert(*program, (ratio * 1000.0).round() as u64);
            }
        }
        statistics
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_machine::Machine;

    use super::*;
    use crate::balancer::Balancer;
    use crate::daemon::saved::Saved;
    use crate::daemon::settings::Settings;
    use crate::options::Options;

    #[test]
    fn cpus_are_read_only_where_no_round_has_read_them() {
        let options = Options { dry_run: true, ..Options::by_procfs() };
        let machine = Machine::preset("small").unwrap();
        let balancer = Balancer::new(machine, None, options.clone()).unwrap();
        let settings = Settings { options, names: Vec::new(), cgroups: Vec::new() };
        let mut programs = Programs::new(balancer, settings, Saved::default());
        let mut reads_after = |round: bool| {
            if round {
                programs.balancer.observer().read().unwrap();
            }
            let before_ns = programs.balancer.observer().last().at_ns;
            programs.look_at_cpus();
            programs.balancer.observer().last().at_ns > before_ns
        };
        // The first one finds the reading of the start.
        let reads = [false, false, false, true, true, false].map(&mut reads_after);
        assert_eq!(reads, [false, true, true, false, false, true]);
    }

    #[test]
    fn what_is_known_of_a_gain_has_its_name_in_json() {
        for (proven, name) in PROVEN {
            assert_eq!(serde_json::to_value(proven).unwrap(), name);
        }
    }
}
