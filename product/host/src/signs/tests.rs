use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

/// What the files count of one CPU.
#[derive(Debug, Clone, Copy, Default)]
struct Cpu {
    net_rx: u64,
    timer: u64,
    ticks: [u64; 3],
}

/// The files of a machine with these CPUs.
fn texts(at_ns: u64, cpus: &BTreeMap<u32, Cpu>, waited_us: u64) -> Texts {
    let row = |name: &str, of: &dyn Fn(u32, &Cpu) -> String| {
        let cells: Vec<String> = cpus.iter().map(|(number, cpu)| of(*number, cpu)).collect();
        format!("{name:>12} {}\n", cells.join("  "))
    };
    let softirqs = row("", &|number, _| format!("CPU{number}"))
        + &row("HI:", &|_, _| "0".to_owned())
        + &row("TIMER:", &|_, cpu| cpu.timer.to_string())
        + &row("NET_RX:", &|_, cpu| cpu.net_rx.to_string())
        + &row("RCU:", &|_, cpu| cpu.timer.to_string());
    let stat = cpus.iter().map(|(number, Cpu { ticks: [irq, softirq, steal], .. })| {
        format!("cpu{number} 11 22 33 44 55 {irq} {softirq} {steal} 0 0\n")
    });
    let stat = format!("cpu  1 2 3 4 5 999 999 999 9 9\n{}intr 5 0\n", stat.collect::<String>());
    let pressure = format!(
        "some avg10=1.00 avg60=2.00 avg300=3.00 total={waited_us}\n\
         full avg10=0.00 avg60=0.00 avg300=0.00 total=77\n"
    );
    Texts { at_ns, softirqs: Ok(softirqs), pressure: Ok(pressure), stat: Some(Ok(stat)) }
}

fn machine(cpus: u32) -> BTreeMap<u32, Cpu> {
    (0..cpus).map(|cpu| (cpu, Cpu::default())).collect()
}

/// A machine of two CPUs that is looked at once a second, from the first look on.
struct Looks {
    signs: Signs,
    at_ns: u64,
    cpus: BTreeMap<u32, Cpu>,
    waited_us: u64,
    usable: CpuSet,
}

impl Looks {
    fn new() -> Self {
        let cpus = machine(2);
        let first = texts(0, &cpus, 0);
        let mut signs = Signs::from(&first);
        let usable = CpuSet::first(2);
        assert_eq!(signs.compare(&first, &usable), None);
        Self { signs, at_ns: 0, cpus, waited_us: 0, usable }
    }

    /// The look after so many ms.
    fn after(&mut self, ms: u64) -> Option<Sign> {
        self.at_ns += ms * MS;
        let texts = texts(self.at_ns, &self.cpus, self.waited_us);
        self.signs.compare(&texts, &self.usable)
    }

    fn cpu(&mut self, cpu: u32) -> &mut Cpu {
        self.cpus.get_mut(&cpu).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever equal CPUs do, it is no sign, unless tasks wait for them.
    #[test]
    fn equal_cpus_give_no_sign(
        count in 1u32..12,
        looks in prop::collection::vec(
            (1u64..5000, 0u64..10_000_000, prop::array::uniform3(0u64..500)),
            1..12,
        ),
        waited in 0u64..3,
    ) {
        let mut cpus = machine(count);
        let (mut at_ns, mut waited_us) = (0, 0);
        let usable = CpuSet::first(count);
        let mut signs = Signs::from(&texts(0, &cpus, 0));
        for (ms, net_rx, ticks) in looks {
            at_ns += ms * MS;
            // Less than 2 per cent.
            waited_us += ms * 1000 * waited / 200;
            for cpu in cpus.values_mut() {
                cpu.net_rx += net_rx;
                cpu.timer += ms;
                cpu.ticks = std::array::from_fn(|taker| cpu.ticks[taker] + ticks[taker]);
            }
            prop_assert_eq!(signs.compare(&texts(at_ns, &cpus, waited_us), &usable), None);
        }
    }

    /// One CPU that loses time or takes interrupts is found among any number, and named.
    #[test]
    fn one_unequal_cpu_is_named(
        count in 2u32..12,
        which in any::<prop::sample::Index>(),
        common in 0u64..100_000,
        taker in 0usize..3,
    ) {
        let odd = which.index(count as usize) as u32;
        let usable = CpuSet::first(count);
        let mut cpus = machine(count);
        let mut signs = Signs::from(&texts(0, &cpus, 0));
        prop_assert_eq!(signs.compare(&texts(0, &cpus, 0), &usable), None);
        let mut look = |cpus: &BTreeMap<u32, Cpu>, second: u64| {
            signs.compare(&texts(second * 1000 * MS, cpus, 0), &usable)
        };
        for cpu in cpus.values_mut() {
            cpu.net_rx += common;
        }
        cpus.get_mut(&odd).unwrap().net_rx += 600;
        let sign = look(&cpus, 1);
        let is_found = matches!(sign, Some(Sign::Softirqs { most, per_second: 600, .. }) if most == odd);
        prop_assert!(is_found, "{:?}", sign);
        for cpu in cpus.values_mut() {
            cpu.ticks = [common; 3];
        }
        cpus.get_mut(&odd).unwrap().ticks[taker] += 5;
        let sign = look(&cpus, 2);
        let is_found = matches!(
            sign,
            Some(Sign::Taken { most, by, per_mille: 50, .. }) if most == odd && by == TAKERS[taker]
        );
        prop_assert!(is_found, "{:?}", sign);
    }

    /// Whatever the files hold, nothing panics, and what is not understood is no count.
    #[test]
    fn any_text_is_read(softirq in ".*", stat in ".*", pressure in ".*", usable in 0u32..70) {
        let mut signs = Signs::from(&texts(0, &machine(2), 0));
        let odd = Texts {
            at_ns: 5,
            softirqs: Ok(format!("CPU0 CPU1 {softirq}\nHI: {softirq}\nX: {stat}")),
            pressure: Ok(format!("some total={pressure}")),
            stat: Some(Ok(format!("cpu0 {stat}\ncpu{stat}\n{pressure}"))),
        };
        signs.compare(&odd, &CpuSet::first(usable));
        signs.compare(&odd, &CpuSet::first(usable));
    }
}

#[test]
fn few_softirqs_are_no_sign() {
    let mut looks = Looks::new();
    // At 1980 a second, but few: a program that starts.
    looks.cpu(1).net_rx += 99;
    assert_eq!(looks.after(50), None);
    looks.cpu(1).net_rx += 100;
    assert!(matches!(
        looks.after(50),
        Some(Sign::Softirqs { most: 1, least: 0, per_second: 2000 })
    ));
    looks.cpu(0).net_rx += 499;
    assert_eq!(looks.after(1000), None);
}

#[test]
fn a_busy_cpus_own_tick_is_no_sign() {
    let mut looks = Looks::new();
    looks.cpu(0).timer += 3000;
    assert_eq!(looks.after(1000), None);
}

#[test]
fn two_ticks_are_no_sign() {
    let mut looks = Looks::new();
    looks.cpu(0).ticks[0] += 2;
    assert_eq!(looks.after(20), None);
    looks.cpu(0).ticks[2] += 3;
    let sign = looks.after(100).unwrap();
    assert_eq!(sign.to_string(), "steal takes 30.0 % more of CPU 0 than of CPU 1");
    // Three ticks of ten seconds.
    looks.cpu(0).ticks[2] += 3;
    assert_eq!(looks.after(10_000), None);
}

#[test]
fn what_one_cpu_loses_otherwise_makes_it_equal() {
    let mut looks = Looks::new();
    looks.cpu(0).ticks = [30, 0, 0];
    looks.cpu(1).ticks = [0, 10, 20];
    assert_eq!(looks.after(1000), None);
}

#[test]
fn stat_is_read_seldom() {
    let mut looks = Looks::new();
    assert!(!looks.signs.is_stat_due(TAKEN_WINDOW_NS - 1));
    assert!(looks.signs.is_stat_due(TAKEN_WINDOW_NS));
    looks.after(600);
    assert!(!looks.signs.is_stat_due(600 * MS + TAKEN_WINDOW_NS - 1));
    assert!(!Signs::from(&texts(0, &machine(2), 0)).is_stat_due(0), "the start is the base");
}

#[test]
fn waiting_is_a_sign_the_second_time_or_if_it_is_long() {
    let mut looks = Looks::new();
    // 10 % of a second.
    looks.waited_us += 100_000;
    assert_eq!(looks.after(1000), None);
    looks.waited_us += 99_999;
    assert_eq!(looks.after(1000), None, "less, so not in a row");
    looks.waited_us += 100_000;
    assert_eq!(looks.after(1000), None);
    looks.waited_us += 150_000;
    assert_eq!(looks.after(1000).unwrap().to_string(), "tasks waited for a CPU 15.0 % of the time");
    let mut looks = Looks::new();
    looks.waited_us += 400_000;
    assert_eq!(looks.after(1000), Some(Sign::Waited { per_mille: 400 }));
    // The start of a program: all the time, but for a short time.
    let mut looks = Looks::new();
    looks.waited_us += 40_000;
    assert_eq!(looks.after(40), None);
    // What was too early to tell is not forgotten.
    looks.waited_us += 40_000;
    assert_eq!(looks.after(60), Some(Sign::Waited { per_mille: 800 }));
}

#[test]
fn one_contended_cpu_of_many_is_seen() {
    let usable = CpuSet::first(100);
    let mut signs = Signs::from(&texts(0, &machine(100), 0));
    let look = |signs: &mut Signs, second: u64, waited_us| {
        signs.compare(&texts(second * 1000 * MS, &machine(100), waited_us), &usable)
    };
    // Half of one CPU's time is 5 thousandths of all.
    assert_eq!(look(&mut signs, 1, 5_000), None);
    assert_eq!(look(&mut signs, 2, 10_000), Some(Sign::Waited { per_mille: 5 }));
}

#[test]
fn cpus_that_come_and_go_count_for_nothing() {
    let mut looks = Looks::new();
    // CPU 2 comes with large counts; CPU 1 begins anew; CPU 0 is as it was.
    looks.cpus.insert(2, Cpu { net_rx: 1_000_000, timer: 0, ticks: [1000; 3] });
    looks.usable = CpuSet::first(3);
    looks.cpu(1).net_rx = 1_000_000;
    looks.cpu(1).ticks = [1000; 3];
    looks.usable.remove(1);
    assert_eq!(looks.after(1000), None, "CPU 1 is not usable");
    *looks.cpu(1) = Cpu::default();
    looks.usable.insert(1);
    assert_eq!(looks.after(1000), None, "the counters of CPU 1 went backwards");
    looks.cpus.remove(&2);
    assert_eq!(looks.after(1000), None);
    looks.cpu(1).net_rx += 5000;
    assert!(matches!(looks.after(1000), Some(Sign::Softirqs { most: 1, least: 0, .. })));
}

#[test]
fn what_cannot_be_read_is_a_sign() {
    let good = texts(1000 * MS, &machine(2), 0);
    let cases = [
        (SOFTIRQS, Texts { softirqs: Err("gone".into()), ..good.clone() }),
        (SOFTIRQS, Texts { softirqs: Ok("\n".into()), ..good.clone() }),
        (PRESSURE, Texts { pressure: Err("gone".into()), ..good.clone() }),
        (PRESSURE, Texts { pressure: Ok("some avg10=0.00 total=-1\n".into()), ..good.clone() }),
        (STAT, Texts { stat: Some(Err("gone".into())), ..good.clone() }),
        (STAT, Texts { stat: Some(Ok("cpu  1 2 3\ncpu0 1 2 3\n".into())), ..good.clone() }),
    ];
    for (expected, texts) in cases {
        // Also where it could not be read from the start.
        for first in [&good, &texts] {
            let mut signs = Signs::from(first);
            match signs.compare(&texts, &CpuSet::first(2)) {
                Some(Sign::Unknown { file, .. }) => assert_eq!(file, expected),
                sign => panic!("{expected}: {sign:?}"),
            }
        }
    }
}

#[test]
fn malformed_lines_are_left_out() {
    let text = "       CPU0  CPUx CPU2\n HI: 1 2 3\nbroken\n NET_RX: 10 20\n BLOCK: 7 y z\n";
    assert_eq!(softirqs(text), Some(BTreeMap::from([(0, 18), (2, 3)])));
    let text = "cpu  1 1 1 1 1 9 9 9\ncpu0 1 1 1 1 1 6 7 8 9\ncpux 1 1 1 1 1 1 1 1\n\
        cpu1 1 1 1 1 1 x 1 1\ncpu3 1 1 1 1 1 2 3\ncpu4 1 1 1 1 1 2 3 4\n";
    assert_eq!(ticks_taken(text), BTreeMap::from([(0, [6, 7, 8]), (4, [2, 3, 4])]));
    assert_eq!(waited_us("full total=1\nsome avg10=0.00 total=5 total=6\n"), Some(5));
}

#[test]
fn speeds_that_differ_are_a_sign() {
    let machine = Machine::preset("amc1").unwrap();
    let all = machine.online();
    let sign = unequal_speeds(&machine, &all).unwrap();
    let Sign::Speeds { slow, fast } = &sign else { panic!("{sign:?}") };
    assert!(slow.1 < fast.1 && sign.to_string().contains("of the speed of CPU"));
    let slowest: CpuSet = {
        let cpus = machine.cpus.iter().filter(|cpu| cpu.capability == slow.1);
        cpus.map(|cpu| cpu.id).collect()
    };
    assert_eq!(unequal_speeds(&machine, &slowest), None);
    assert_eq!(unequal_speeds(&machine, &CpuSet::new()), None);
}
