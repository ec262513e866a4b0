//! From the speeds of the CPUs to their capabilities, 1..=1024: the fastest online CPU has 1024, the
//! others their share of its speed.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::cpuset::{CpuListError, CpuSet};
use crate::error::Error;
use crate::machine::Machine;
use crate::speed::{CAPABILITY_SCALE, SpeedOrigin, SpeedSource};

impl Machine {
    /// The same machine with capabilities from `source`, the fastest online CPU at
    /// [`CAPABILITY_SCALE`] and none below 1. An offline CPU without a figure counts as the
    /// fastest.
    ///
    /// # Errors
    ///
    /// [`Error::SpeedMissing`] if a forced source has no figure for an online CPU;
    /// [`Error::SpeedOfUnknownCpu`] and [`Error::SpeedValue`] for given or measured speeds.
    pub fn with_speed(&self, source: &SpeedSource) -> Result<Machine, Error> {
        let read = |origin| Ok((origin, self.figures(origin)?));
        let (origin, figures) = match source {
            SpeedSource::Auto => self.best_figures(),
            SpeedSource::CpuCapacity => read(SpeedOrigin::CpuCapacity)?,
            SpeedSource::Cppc => read(SpeedOrigin::Cppc)?,
            SpeedSource::MaxFrequency => read(SpeedOrigin::MaxFrequency)?,
            SpeedSource::Bogomips => read(SpeedOrigin::Bogomips)?,
            SpeedSource::Given(speeds) => {
                let mut figures: BTreeMap<u32, f64> =
                    self.cpus.iter().map(|cpu| (cpu.id, 1.0)).collect();
                figures.extend(self.checked(speeds)?);
                (SpeedOrigin::Given, figures)
            }
            SpeedSource::Calibrated(speeds) => (SpeedOrigin::Calibrated, self.checked(speeds)?),
        };
        Ok(self.scaled(origin, &figures))
    }

    /// The best source that every online CPU has. Bogomips is not among them: on most machines of
    /// today it is derived from the time-stamp counter and hides differences.
    fn best_figures(&self) -> (SpeedOrigin, BTreeMap<u32, f64>) {
        [SpeedOrigin::CpuCapacity, SpeedOrigin::Cppc, SpeedOrigin::MaxFrequency]
            .into_iter()
            .find_map(|origin| Some((origin, self.figures(origin).ok()?)))
            .unwrap_or((SpeedOrigin::Equal, BTreeMap::new()))
    }

    fn figures(&self, origin: SpeedOrigin) -> Result<BTreeMap<u32, f64>, Error> {
        let mut figures = BTreeMap::new();
        for cpu in &self.cpus {
            match origin.figure(&cpu.sources) {
                Some(figure) => {
                    figures.insert(cpu.id, figure);
                }
                None if cpu.online => {
                    return Err(Error::SpeedMissing {
                        cpu: cpu.id,
                        origin,
                        remedy: origin.remedy(),
                    });
                }
                None => {}
            }
        }
        Ok(figures)
    }

    fn checked(&self, speeds: &BTreeMap<u32, f64>) -> Result<BTreeMap<u32, f64>, Error> {
        for (&cpu, &value) in speeds {
            if self.cpu(cpu).is_none() {
                let present: CpuSet = self.cpus.iter().map(|cpu| cpu.id).collect();
                return Err(Error::SpeedOfUnknownCpu { cpu, present });
            }
            check_speed(cpu, value)?;
        }
        Ok(speeds.clone())
    }

    fn scaled(&self, origin: SpeedOrigin, figures: &BTreeMap<u32, f64>) -> Machine {
        let fastest = self
            .cpus
            .iter()
            .filter(|cpu| cpu.online)
            .filter_map(|cpu| figures.get(&cpu.id).copied())
            .fold(0.0, f64::max);
        let mut machine = self.clone();
        machine.speed = origin;
        // A map without any online CPU (nothing could be measured) leaves all CPUs equal.
        let figure = |id| figures.get(&id).copied().filter(|_| fastest > 0.0);
        for cpu in &mut machine.cpus {
            cpu.capability = match figure(cpu.id) {
                Some(figure) => {
                    let share = (figure / fastest).min(1.0) * f64::from(CAPABILITY_SCALE);
                    (share.round() as u32).clamp(1, CAPABILITY_SCALE)
                }
                None => CAPABILITY_SCALE,
            };
        }
        machine
    }
}

fn check_speed(cpu: u32, value: f64) -> Result<(), Error> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(Error::SpeedValue { cpu, value }) }
}

impl FromStr for SpeedSource {
    type Err = Error;

    /// Reads the argument of `--speed`: `auto`, `cpu-capacity`, `cppc`, `max-frequency`,
    /// `bogomips`, or a list like `0-3=1.0,4-7=0.5` (each part one CPU or one range). `calibrated`
    /// is not among them: it needs a measurement, which the caller has to make first.
    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text.trim() {
            "auto" => Self::Auto,
            "cpu-capacity" => Self::CpuCapacity,
            "cppc" => Self::Cppc,
            "max-frequency" => Self::MaxFrequency,
            "bogomips" => Self::Bogomips,
            list => Self::Given(parse_speeds(list)?),
        })
    }
}

fn parse_speeds(list: &str) -> Result<BTreeMap<u32, f64>, Error> {
    let mut speeds = BTreeMap::new();
    for item in list.split(',') {
        let wrong = |rule: String| Error::SpeedList { item: item.trim().to_owned(), rule };
        let (cpus, value) = item.split_once('=').ok_or_else(|| {
            wrong(
                "expected auto, cpu-capacity, cppc, max-frequency, bogomips, or speeds like \
                 0-3=1.0,4-7=0.5"
                    .to_owned(),
            )
        })?;
        let cpus: CpuSet = cpus.parse().map_err(|error: CpuListError| wrong(error.to_string()))?;
        if cpus.is_empty() {
            return Err(wrong("names no CPU: write for example 0=1.0".to_owned()));
        }
        let value: f64 = value
            .trim()
            .parse()
            .map_err(|_| wrong("the speed is not a number: write for example 0=1.0".to_owned()))?;
        for cpu in cpus.iter() {
            check_speed(cpu, value)?;
            if speeds.insert(cpu, value).is_some() {
                return Err(wrong(format!("CPU {cpu} is given twice: give it one speed")));
            }
        }
    }
    Ok(speeds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn given(pairs: &[(u32, f64)]) -> SpeedSource {
        SpeedSource::Given(pairs.iter().copied().collect())
    }

    fn capabilities(machine: &Machine) -> Vec<u32> {
        machine.cpus.iter().map(|cpu| cpu.capability).collect()
    }

    #[test]
    fn lists_are_read() {
        assert_eq!("auto".parse::<SpeedSource>().unwrap(), SpeedSource::Auto);
        assert_eq!("bogomips".parse::<SpeedSource>().unwrap(), SpeedSource::Bogomips);
        assert_eq!("0=1.0,1=0.5".parse::<SpeedSource>().unwrap(), given(&[(0, 1.0), (1, 0.5)]));
        assert_eq!(
            "0-1=2, 4=1e-1".parse::<SpeedSource>().unwrap(),
            given(&[(0, 2.0), (1, 2.0), (4, 0.1)])
        );
    }

    #[test]
    fn bad_lists_name_the_part_and_the_remedy() {
        for (list, words) in [
            ("fast", "\"fast\": expected auto"),
            ("", "expected auto"),
            ("0=1,1", "\"1\": expected"),
            ("=1", "names no CPU"),
            ("x=1", "\"x\" is not a CPU list"),
            ("3-1=1", "runs backwards"),
            ("0=quick", "is not a number"),
            ("0=0", "speed of CPU 0 is 0: a speed is a finite number above 0"),
            ("0=-1", "speed of CPU 0 is -1"),
            ("0=NaN", "speed of CPU 0 is NaN"),
            ("0=inf", "speed of CPU 0 is inf"),
            ("0-3=1,2=0.5", "\"2=0.5\": CPU 2 is given twice"),
        ] {
            let error = list.parse::<SpeedSource>().unwrap_err().to_string();
            assert!(error.contains(words), "{list}: {error}");
        }
    }

    #[test]
    fn missing_cpus_have_speed_one_when_given_and_the_highest_when_measured() {
        let machine = Machine::preset("small").unwrap();
        assert_eq!(capabilities(&machine), [1024, 1024]);
        let half = machine.with_speed(&given(&[(1, 0.5)])).unwrap();
        assert_eq!((capabilities(&half), half.speed), (vec![1024, 512], SpeedOrigin::Given));
        let double = machine.with_speed(&given(&[(1, 2.0)])).unwrap();
        assert_eq!(capabilities(&double), [512, 1024]);
        let measured =
            machine.with_speed(&SpeedSource::Calibrated([(1, 7e8)].into_iter().collect())).unwrap();
        assert_eq!(capabilities(&measured), [1024, 1024]);
        assert_eq!(measured.speed, SpeedOrigin::Calibrated);
        let nothing = machine.with_speed(&SpeedSource::Calibrated(BTreeMap::new())).unwrap();
        assert_eq!(capabilities(&nothing), [1024, 1024]);
    }

    #[test]
    fn wrong_speeds_are_refused() {
        let machine = Machine::preset("small").unwrap();
        let error = machine.with_speed(&given(&[(2, 1.0)])).unwrap_err().to_string();
        assert_eq!(error, "speed of CPU 2: the machine has no such CPU: use CPUs 0-1");
        let nan = SpeedSource::Calibrated([(0, f64::NAN)].into_iter().collect());
        assert!(matches!(machine.with_speed(&nan), Err(Error::SpeedValue { cpu: 0, .. })));
        let error = machine.with_speed(&SpeedSource::Cppc).unwrap_err().to_string();
        assert!(error.starts_with("CPU 0 has no cppc figure: use auto"), "{error}");
    }

    proptest! {
        #[test]
        fn the_fastest_has_1024_and_order_is_kept(
            speeds in prop::collection::btree_map(0u32..24, 1e-300f64..1e300, 1..24)
        ) {
            let machine = Machine::preset("hybrid").unwrap();
            let machine = machine.with_speed(&SpeedSource::Given(speeds.clone())).unwrap();
            let fastest = machine.cpus.iter().map(|cpu| cpu.capability).max();
            prop_assert_eq!(fastest, Some(CAPABILITY_SCALE));
            prop_assert!(machine.cpus.iter().all(|cpu| cpu.capability >= 1));
            let speed = |id: u32| speeds.get(&id).copied().unwrap_or(1.0);
            for a in &machine.cpus {
                for b in &machine.cpus {
                    prop_assert!(speed(a.id) > speed(b.id) || a.capability <= b.capability);
                }
            }
        }

        #[test]
        fn no_text_panics(text in "[-0-9a-z=,. ]{0,30}") {
            let _ = text.parse::<SpeedSource>();
        }
    }
}
