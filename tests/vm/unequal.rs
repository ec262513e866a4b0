//! Unequal CPUs on a real kernel: fast CPUs carry more, the right tasks get them, and none of them idles
//! while a slow one works.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;
use nix::mount::{MsFlags, mount, umount};

use crate::Test;
use crate::policies::{counted, refused};
use crate::roles::role;
use crate::scheduler::Keel;
use crate::storms::*;
use crate::support::{Host, all, just, mask, wait_for};
use crate::worker::Worker;

/// Two CPUs that are twice as fast as two others.
const UNEQUAL: &[&str] =
    &["--balance", "capability", "--capacity", "0-1=1024,2-3=512", "--static-capacity"];
const FAST: [u32; 2] = [0, 1];
const SLOW: [u32; 2] = [2, 3];
/// How often a test reads where threads are.
const LOOKS: usize = 60;

/// On the kernel of all tests.
pub const TESTS: &[Test] = &[
    Test { name: "unequal::fast_cpus_carry_more", run: fast_cpus_carry_more },
    Test {
        name: "unequal::time_that_is_taken_lowers_the_capability",
        run: time_that_is_taken_lowers_the_capability,
    },
    Test {
        name: "unequal::a_task_alone_on_a_slow_cpu_leaves_it",
        run: a_task_alone_on_a_slow_cpu_leaves_it,
    },
    Test {
        name: "unequal::threads_take_turns_on_the_fast_cpus",
        run: threads_take_turns_on_the_fast_cpus,
    },
    Test {
        name: "unequal::threads_of_a_program_get_similar_cpus",
        run: threads_of_a_program_get_similar_cpus,
    },
    Test { name: "unequal::fast_cpus_do_not_idle", run: fast_cpus_do_not_idle },
    Test {
        name: "unequal::fast_cpus_do_not_idle_beside_a_thief",
        run: fast_cpus_do_not_idle_beside_a_thief,
    },
    Test { name: "unequal::hogs_get_the_fast_cpus", run: hogs_get_the_fast_cpus },
    Test {
        name: "unequal::few_threads_are_kept_on_cpus_of_less_energy",
        run: few_threads_are_kept_on_cpus_of_less_energy,
    },
];

/// The kernel shows its energy model below this directory.
const DEBUGFS: &str = "/sys/kernel/debug";

/// Makes up an energy model: work on the CPUs `less` needs less energy than on all others.
fn make_up_energy(less: [u32; 2]) {
    for cpu in all().iter() {
        let domain = format!("{DEBUGFS}/energy_model/cpu{cpu}");
        let state = format!("{domain}/ps:1000000");
        fs::create_dir_all(&state).unwrap();
        fs::write(format!("{domain}/cpus"), cpu.to_string()).unwrap();
        fs::write(format!("{state}/performance"), "512").unwrap();
        fs::write(format!("{state}/cost"), if less.contains(&cpu) { "40" } else { "100" }).unwrap();
    }
}

/// In so many looks, in percent, both threads must be on CPUs of less energy. While other programs keep
/// one of these busy, its thread leaves it, and a guest on a busy host has such moments; a policy that
/// minded the pace would take the threads away for good.
const LEAST_KEPT_PCT: usize = 50;

/// `run --prefer efficient`, under the kernel's own scheduler: two threads on four CPUs.
fn few_threads_are_kept_on_cpus_of_less_energy() {
    mount(Some("none"), DEBUGFS, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    for less in [FAST, SLOW] {
        make_up_energy(less);
        let host = Host::new();
        let flags = ["-q", "--prefer", "efficient", "--accounting", "cbinfo"];
        let mut worker = Worker::start(&host, &flags);
        let is_kept = || {
            let [one, other] = [0, 1].map(|thread| mask(worker.threads[thread]));
            let is_single = |mask: &CpuSet| less.iter().any(|cpu| *mask == just(*cpu));
            one != other && is_single(&one) && is_single(&other)
        };
        wait_for("the threads' CPUs", is_kept);
        let mut kept = 0;
        for _ in 0..LOOKS {
            std::thread::sleep(Duration::from_millis(50));
            kept += usize::from(is_kept());
        }
        // They stay there, whatever that does to their pace.
        assert!(kept * 100 >= LOOKS * LEAST_KEPT_PCT, "{kept} of {LOOKS} looks");
        let status = host.status()[0].to_string();
        assert!(status.contains("less energy was asked for"), "{status}");
        worker.kill_evenkeel();
        wait_for("the supervisor's work", || worker.is_as(&all()));
        worker.let_end();
        // `status` removes the status file of the run that was killed.
        host.status();
    }
    umount(DEBUGFS).unwrap();
}

/// Twelve hogs on four CPUs, two of them twice as fast as the others: the fast CPUs get eight hogs.
fn fast_cpus_carry_more() {
    let keel = Keel::start(UNEQUAL);
    let mut hogs = Threads::default();
    (0..12).for_each(|_| hogs.start(|| spin(Duration::from_millis(10))));
    std::thread::sleep(Duration::from_secs(4));
    let mut fast = Vec::new();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(100));
        let runnable = keel.runnable();
        fast.push(runnable[0] + runnable[1]);
    }
    fast.sort_unstable();
    // CPUs that count as equal would carry six; a guest's own threads come and go.
    assert!(fast[fast.len() / 2] >= 7, "{fast:?}");
    hogs.end();
    assert_eq!(keel.end().0, Some(0));
}

/// A CPU that a real-time task has for three quarters of the time has a quarter of its capability
/// left, and all of it when the task has gone.
fn time_that_is_taken_lowers_the_capability() {
    let keel = Keel::start(&["--balance", "capability"]);
    // The host takes a part of all CPUs.
    let is_less = || {
        let capabilities = keel.capabilities();
        capabilities[2] * 2 < capabilities[0]
    };
    let mut thief = Threads::default();
    thief.start(|| {
        spin(Duration::from_millis(30));
        std::thread::sleep(Duration::from_millis(10));
    });
    let tid = *thief.tids.last().unwrap();
    affinity::set(tid, &just(2)).unwrap();
    set_real_time(tid, 10);
    wait_for("a CPU that can do less", is_less);
    thief.end();
    wait_for("all that it can do", || {
        let capabilities = keel.capabilities();
        capabilities[2] * 10 > capabilities[0] * 9
    });
    assert_eq!(keel.end().0, Some(0));
    let still = Keel::start(&["--balance", "capability", "--static-capacity"]);
    assert_eq!(still.capabilities(), [1024; 4]);
    assert_eq!(still.end().0, Some(0));
}

/// A hog is alone on the one slow CPU that it may use, and goes to a fast CPU as soon as its mask
/// allows it.
fn a_task_alone_on_a_slow_cpu_leaves_it() {
    let refusal = refused(&["sched", "--parts", "active"]);
    assert!(refusal.contains("use --balance capability"), "{refusal}");
    for (active, leaves) in [(&[][..], false), (&["--parts", "active"][..], true)] {
        let keel = Keel::start(&[UNEQUAL, active].concat());
        let counters = counted(&keel, || {
            let mut hogs = Threads::default();
            hogs.start(|| spin(Duration::from_millis(10)));
            let tid = *hogs.tids.last().unwrap();
            affinity::set(tid, &just(3)).unwrap();
            std::thread::sleep(Duration::from_secs(1));
            affinity::set(tid, &all()).unwrap();
            std::thread::sleep(Duration::from_secs(2));
            hogs.end();
        });
        assert_eq!(counters["move_active"] > 0, leaves, "{counters:?}");
        assert_eq!(keel.end().0, Some(0));
    }
}

/// The threads of a program that has one for each CPU change places where CPUs are unequal.
fn threads_take_turns_on_the_fast_cpus() {
    for (turns, change) in [(&[][..], false), (&["--parts", "turns"][..], true)] {
        let keel = Keel::start(&[UNEQUAL, turns].concat());
        let counters = counted(&keel, || {
            let mut hogs = Threads::default();
            for _ in 0..4 {
                hogs.start(|| spin(Duration::from_millis(10)));
            }
            std::thread::sleep(Duration::from_secs(2));
            hogs.end();
        });
        assert_eq!(counters["move_active"] > 0, change, "{counters:?}");
        assert_eq!(keel.end().0, Some(0));
    }
}

/// A program of two threads that only compute, until its input ends.
pub fn play_pair() {
    let mut threads = Threads::default();
    (0..2).for_each(|_| threads.start(|| spin(Duration::from_millis(10))));
    for tid in &threads.tids {
        println!("{tid}");
    }
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    threads.end();
}

/// Such a program, and its threads.
fn pair() -> (Child, [i32; 2]) {
    let command = role("pair");
    let mut process = Command::new(command[0]);
    let process = process.args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut pair = process.spawn().unwrap();
    let mut said = BufReader::new(pair.stdout.take().unwrap()).lines();
    let tids = [(); 2].map(|()| said.next().unwrap().unwrap().parse().unwrap());
    (pair, tids)
}

/// In at least so many of the looks, in percent, each program's threads are to be on CPUs of one kind.
/// Without the part `similar` they stay where they are put at first: in none of the looks.
const SIMILAR_PCT: usize = 50;

/// Two programs begin with one thread on a fast CPU and one on a slow CPU each. In the end one
/// program has both fast CPUs, and the other one both slow CPUs.
fn threads_of_a_program_get_similar_cpus() {
    let keel = Keel::start(&[UNEQUAL, &["--parts", "similar"]].concat());
    let programs = [pair(), pair()];
    for ((_, tids), cpus) in programs.iter().zip([[0, 2], [1, 3]]) {
        for (tid, cpu) in tids.iter().zip(cpus) {
            affinity::set(*tid, &just(cpu)).unwrap();
        }
    }
    let fast = |tids: &[i32; 2]| tids.iter().filter(|tid| is_on_a_fast_cpu(tid)).count();
    let is_split = || programs.iter().all(|(_, tids)| fast(tids) == 1);
    wait_for("each program on unequal CPUs", is_split);
    let tids = || programs.iter().flat_map(|(_, tids)| tids);
    tids().for_each(|tid| affinity::set(*tid, &all()).unwrap());
    let is_similar = || programs.iter().all(|(_, tids)| fast(tids) != 1);
    wait_for("each program on similar CPUs", is_similar);
    let mut similar = 0;
    for _ in 0..LOOKS {
        std::thread::sleep(Duration::from_millis(20));
        similar += usize::from(is_similar());
    }
    println!("on similar CPUs in {similar} of {LOOKS} looks");
    assert!(similar * 100 >= LOOKS * SIMILAR_PCT, "{similar} of {LOOKS} looks");
    for (mut program, _) in programs {
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
    }
    assert_eq!(keel.end().0, Some(0));
}

/// The CPU on which a thread runs, or ran last.
fn cpu_of(tid: i32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
    // The name may have blanks; the 39th field is the 37th behind it.
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    rest.split(' ').nth(36).unwrap().parse().unwrap()
}

fn is_on_a_fast_cpu(tid: &i32) -> bool {
    FAST.contains(&cpu_of(*tid))
}

/// A thread that only computes.
fn hog() -> Threads {
    let mut hog = Threads::default();
    hog.start(|| spin(Duration::from_millis(10)));
    hog
}

/// How often the test looks where the hogs are, after the fast CPUs have them again.
const LOOKS_A_STAGE: usize = 150;
/// In so many of these looks, in percent, a fast CPU may have no hog while a slow CPU has one. When
/// another task wakes on a fast CPU, its hog must wait, and an idle slow CPU takes the hog. That comes
/// back at one of the next ticks, each of which may last some 100 ms in an emulator.
const MOST_IDLE_PCT: usize = 30;

/// A hog on each CPU; those on the fast CPUs end first. After each end the hogs that are left come
/// to the fast CPUs, and stay there.
fn stagger() {
    let mut hogs: Vec<Threads> = all().iter().map(|_| hog()).collect();
    // This thread looks from a slow CPU, so that it does not itself make a hog on a fast CPU wait.
    affinity::set(nix::unistd::gettid().as_raw(), &just(SLOW[1])).unwrap();
    let tid_of = |hogs: &Threads| hogs.tids[0];
    let cpus = |hogs: &[Threads]| hogs.iter().map(|hog| cpu_of(tid_of(hog))).collect::<Vec<_>>();
    let a_fast_one_idles = |hogs: &[Threads]| {
        let cpus = cpus(hogs);
        SLOW.iter().any(|cpu| cpus.contains(cpu)) && !FAST.iter().all(|cpu| cpus.contains(cpu))
    };
    let has_all_fast = |hogs: &[Threads]| FAST.iter().all(|cpu| cpus(hogs).contains(cpu));
    wait_for("a hog on each fast CPU", || has_all_fast(&hogs));
    while hogs.len() > 1 {
        let first = hogs.iter().position(|hog| is_on_a_fast_cpu(&tid_of(hog))).unwrap_or(0);
        hogs.remove(first).end();
        wait_for("no fast CPU idle beside a slow one that works", || !a_fast_one_idles(&hogs));
        let mut idle = 0;
        for _ in 0..LOOKS_A_STAGE {
            std::thread::sleep(Duration::from_millis(10));
            idle += usize::from(a_fast_one_idles(&hogs));
        }
        let looks = format!("{idle} of {LOOKS_A_STAGE} looks");
        println!("{} hogs: a fast CPU idled beside a slow one that worked in {looks}", hogs.len());
        assert!(idle * 100 <= LOOKS_A_STAGE * MOST_IDLE_PCT, "{looks}");
    }
    wait_for("the last one on a fast CPU", || is_on_a_fast_cpu(&tid_of(&hogs[0])));
    hogs.remove(0).end();
}

fn fast_cpus_do_not_idle() {
    let keel = Keel::start(&[UNEQUAL, &["--parts", "active"]].concat());
    let counters = counted(&keel, stagger);
    assert!(counters["move_active"] > 0, "{counters:?}");
    assert_eq!(keel.end().0, Some(0));
}

/// The same where CPUs are slow because a real-time task has them for three quarters of the time.
fn fast_cpus_do_not_idle_beside_a_thief() {
    let keel = Keel::start(&["--balance", "capability", "--parts", "active"]);
    let mut thieves = Threads::default();
    for cpu in SLOW {
        thieves.start(|| {
            spin(Duration::from_millis(30));
            std::thread::sleep(Duration::from_millis(10));
        });
        let tid = *thieves.tids.last().unwrap();
        affinity::set(tid, &just(cpu)).unwrap();
        set_real_time(tid, 10);
    }
    wait_for("two CPUs that can do less", || {
        let capabilities = keel.capabilities();
        SLOW.iter().all(|slow| capabilities[*slow as usize] * 2 < capabilities[0])
    });
    let counters = counted(&keel, stagger);
    assert!(counters["move_active"] > 0, "{counters:?}");
    thieves.end();
    assert_eq!(keel.end().0, Some(0));
}

/// As many hogs as fast CPUs, beside threads that sleep most of the time: wherever they begin, the
/// hogs come to the fast CPUs, and the others stay on the slow ones.
fn hogs_get_the_fast_cpus() {
    let keel = Keel::start(&[UNEQUAL, &["--parts", "active"]].concat());
    let (mut hogs, mut sleepers) = (Threads::default(), Threads::default());
    for cpu in SLOW {
        hogs.start(|| spin(Duration::from_millis(10)));
        affinity::set(*hogs.tids.last().unwrap(), &just(cpu)).unwrap();
    }
    for _ in all().iter() {
        sleepers.start(|| {
            spin(Duration::from_millis(2));
            std::thread::sleep(Duration::from_millis(10));
        });
    }
    wait_for("hogs on the slow CPUs", || !hogs.tids.iter().any(is_on_a_fast_cpu));
    hogs.tids.iter().for_each(|tid| affinity::set(*tid, &all()).unwrap());
    wait_for("the hogs on the fast CPUs", || hogs.tids.iter().all(is_on_a_fast_cpu));
    let (mut computes, mut sleeps) = (0, 0);
    for _ in 0..LOOKS {
        std::thread::sleep(Duration::from_millis(20));
        computes += hogs.tids.iter().filter(|tid| is_on_a_fast_cpu(tid)).count();
        sleeps += sleepers.tids.iter().filter(|tid| is_on_a_fast_cpu(tid)).count();
    }
    let [computes, sleeps] = [(computes, &hogs), (sleeps, &sleepers)]
        .map(|(seen, threads)| seen as f64 / (LOOKS * threads.tids.len()) as f64);
    println!("on the fast CPUs: {computes:.2} of the hogs, {sleeps:.2} of the sleepers");
    // If all CPUs counted as equal, the hogs would be on all of them alike.
    assert!(computes > 1.5 * sleeps, "{computes} {sleeps}");
    hogs.end();
    sleepers.end();
    assert_eq!(keel.end().0, Some(0));
}
