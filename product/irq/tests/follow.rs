//! Single flows and their consumers: in plans with the aim `source-aware`, in the rounds of `irq run`
//! and in `irq once`, with a card made by hand of which some buckets bring what a CPU receives.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::convert::Infallible;

use evenkeel_irq::{
    Accounting, Actuator, Aim, Change, Cpu, Device, Event, Held, Move, Outcome, Received, Rounds,
    Snapshot, Source, SourceId, Spread, once, plan_for,
};
use evenkeel_machine::CpuSet;

const INTERVAL_NS: u64 = 1_000_000_000;
const QUEUES: u32 = 4;

/// A card with the line of each queue on the CPU of the same number.
#[derive(Debug, Clone)]
struct Card {
    table: Vec<u32>,
    /// The table by which the card spreads packets, if it accepts another one and does not use it.
    real_table: Option<Vec<u32>>,
    /// What buckets bring to which CPU, in thousandths of a CPU.
    flows: Vec<(u32, u32, u64)>,
    held: Option<Held>,
    /// Other softirqs of CPU 1, in thousandths.
    other_permille: u64,
    isolated: Option<u32>,
}

impl Card {
    /// As a driver spreads 16 buckets.
    fn new(flows: &[(u32, u32, u64)]) -> Self {
        Self {
            table: (0..16).map(|bucket| bucket % QUEUES).collect(),
            real_table: None,
            flows: flows.to_vec(),
            held: None,
            other_permille: 0,
            isolated: None,
        }
    }

    /// The queue by which the packets of a bucket arrive.
    fn arrives(&self, bucket: u32) -> u32 {
        self.real_table.as_ref().unwrap_or(&self.table)[bucket as usize]
    }

    fn received(&self) -> BTreeMap<u32, Received> {
        let mut all: BTreeMap<u32, Received> = BTreeMap::new();
        for (bucket, cpu, permille) in &self.flows {
            let received = all.entry(*bucket).or_default();
            *received.by_cpu.entry(*cpu).or_default() += permille;
            *received.by_queue.entry(self.arrives(*bucket)).or_default() += permille;
        }
        all
    }

    fn snapshot(&self) -> Snapshot {
        let permille_of = |queue: u32| -> u64 {
            let flows = self.flows.iter().filter(|(bucket, ..)| self.arrives(*bucket) == queue);
            flows.map(|(_, _, permille)| permille).sum()
        };
        let line = |queue: u32| Source {
            id: SourceId::Line(30 + queue),
            name: format!("eth0-TxRx-{queue}"),
            device: Some("eth0".to_owned()),
            queue: Some(queue),
            allowed: CpuSet::first(QUEUES),
            effective: [queue].into_iter().collect(),
            interrupts: 1,
            ns: [(queue, permille_of(queue) * INTERVAL_NS / 1000)].into(),
            napis: Vec::new(),
            held: self.held,
        };
        let cpu = |number| Cpu {
            number,
            isolated: self.isolated == Some(number),
            protected: false,
            other_ns: if number == 1 { self.other_permille * INTERVAL_NS / 1000 } else { 0 },
            net_rx: 0,
        };
        let device = Device {
            name: "eth0".to_owned(),
            queues: Some(QUEUES),
            hash: Some("toeplitz".to_owned()),
            table: self.table.clone(),
            connections: BTreeMap::new(),
            received: self.received(),
        };
        Snapshot {
            interval_ns: INTERVAL_NS,
            accounting: Accounting::Exact,
            cpus: (0..QUEUES).map(cpu).collect(),
            sources: (0..QUEUES).map(line).collect(),
            devices: vec![device],
        }
    }

    /// What is planned: from which queue to which one, and the buckets.
    fn steps(&self) -> Vec<(u32, u32, Vec<u32>)> {
        let plan = plan_for(&self.snapshot(), Aim::SourceAware);
        assert!(plan.moves.is_empty(), "{plan:?}");
        let spreads = plan.spreads.into_iter();
        spreads.map(|step| (step.from_queue, step.to_queue, step.buckets)).collect()
    }

    /// So many rounds; what is said in them.
    fn rounds(&mut self, rounds: &mut Rounds, count: usize) -> Vec<Event> {
        let mut said = Vec::new();
        for _ in 0..count {
            said.extend(rounds.round(self.snapshot(), self).unwrap());
        }
        said
    }
}

impl Actuator for Card {
    type Error = Infallible;

    fn look(&mut self) -> Result<Vec<Change>, Infallible> {
        Ok(Vec::new())
    }

    fn carry_out(&mut self, step: &Move) -> Result<Outcome, Infallible> {
        panic!("{step}: the flows of a line are received on several CPUs");
    }

    fn spread(&mut self, step: &Spread) -> Result<Outcome, Infallible> {
        for bucket in &step.buckets {
            let queue = &mut self.table[*bucket as usize];
            assert_eq!(*queue, step.from_queue, "{step:?}");
            *queue = step.to_queue;
        }
        Ok(Outcome::Moved)
    }
}

/// All four flows come by queue 0; one is received on its CPU, two on CPU 1, and one on CPU 3.
const FLOWS: [(u32, u32, u64); 4] = [(0, 0, 100), (4, 1, 100), (8, 1, 50), (12, 3, 30)];

#[test]
fn flows_go_to_the_queue_of_the_cpu_that_receives_them() {
    let card = Card::new(&FLOWS);
    assert_eq!(card.steps(), [(0, 1, vec![4, 8]), (0, 3, vec![12])]);
    let made = plan_for(&card.snapshot(), Aim::SourceAware);
    let wanted = "eth0: 2 of 4 buckets of queue 0 (eth0-TxRx-0, CPU 0) -> queue 1 (CPU 1), because what \
                  they bring is received on CPU 1; takes 15.0 %, afterwards interrupts take at most \
                  15.0 % of either";
    assert_eq!(made.spreads[0].to_string(), wanted);
    // To level, it does not matter where something is received.
    let level = plan_for(&card.snapshot(), Aim::Level);
    assert!(level.spreads.iter().all(|step| !step.to_string().contains("received")), "{level:?}");
}

#[test]
fn a_bucket_stays_where_a_change_is_not_clearly_right() {
    // Received on two CPUs; too little to matter; at home.
    for flows in [&[(0, 1, 60), (0, 2, 40)][..], &[(0, 1, 10), (4, 0, 90)], &[(5, 1, 100)]] {
        assert!(Card::new(flows).steps().is_empty(), "{flows:?}");
    }
    let flow = Card::new(&[(0, 1, 150), (4, 0, 100)]);
    assert_eq!(flow.steps(), [(0, 1, vec![0])]);
    let full = Card { other_permille: 700, ..flow.clone() };
    let isolated = Card { isolated: Some(1), ..flow.clone() };
    let of_another = Card { held: Some(Held::LetGo), ..flow.clone() };
    // The card hashes in a way that is not known.
    let otherwise = Card { real_table: Some(vec![2; 16]), ..flow.clone() };
    // An administrator has taken queue 1 out; no bucket would be left.
    let table = (0..16).map(|bucket| bucket % 4 / 2 * 2).collect();
    let without = Card { table, ..flow.clone() };
    let single = Card { table: vec![0, 1, 1, 1], ..Card::new(&[(0, 1, 150)]) };
    for card in [full, isolated, of_another, otherwise, without, single] {
        assert!(card.steps().is_empty(), "{card:?}");
    }
    // The kernel lets a managed line not be moved, but the table be changed.
    assert_eq!(Card { held: Some(Held::Managed), ..flow }.steps().len(), 1);
}

#[test]
fn rounds_bring_each_flow_to_its_consumer_and_then_rest() {
    let mut card = Card::new(&FLOWS);
    let mut rounds = Rounds::new(Aim::SourceAware);
    assert!(card.rounds(&mut rounds, 1).is_empty(), "a burst changes nothing");
    let said = card.rounds(&mut rounds, 5);
    assert!(said.iter().all(|event| matches!(event, Event::Spread(_))), "{said:?}");
    assert_eq!(said.len(), 2, "{said:?}");
    for (bucket, cpu, _) in FLOWS {
        assert_eq!(card.table[bucket as usize], cpu);
    }
    assert!(card.rounds(&mut rounds, 10).is_empty());
    // A consumer moves, and its flow follows; the others stay.
    card.flows[3].1 = 2;
    assert_eq!(card.rounds(&mut rounds, 5).len(), 1);
    assert_eq!((card.table[12], card.table[4]), (2, 1));
}

#[test]
fn a_table_that_a_card_accepts_and_does_not_use_is_taken_back_for_good() {
    let mut card = Card::new(&FLOWS);
    let before = card.table.clone();
    card.real_table = Some(before.clone());
    let mut rounds = Rounds::new(Aim::SourceAware);
    let said = card.rounds(&mut rounds, 10);
    let [Event::Spread(made), Event::Withdrawn(back)] = &said[..] else { panic!("{said:?}") };
    assert_eq!(made, back);
    let wanted = "took back eth0: 2 buckets of queue 0 that led to queue 1 did not bring their packets \
                  there; its table is not changed again";
    assert_eq!(said[1].to_string(), wanted);
    assert_eq!(card.table, before);
}

#[test]
fn a_flow_that_fell_silent_is_no_reason_to_take_a_change_back() {
    let mut card = Card::new(&FLOWS);
    let mut rounds = Rounds::new(Aim::SourceAware);
    assert_eq!(card.rounds(&mut rounds, 2).len(), 1);
    let after = card.table.clone();
    card.flows = vec![(0, 0, 100)];
    assert!(card.rounds(&mut rounds, 5).is_empty());
    assert_eq!(card.table, after);
}

#[test]
fn once_makes_all_changes() {
    let mut card = Card::new(&FLOWS);
    let said = once(card.snapshot(), Aim::SourceAware, &mut card).unwrap();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(card.steps().is_empty());
}
