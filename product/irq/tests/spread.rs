//! The indirection tables of cards: in plans, in the rounds of `irq run` and in `irq once`, with a card
//! made by hand of which each bucket brings a certain time.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::convert::Infallible;

use evenkeel_irq::{
    Accounting, Actuator, Aim, Change, Cpu, Device, Event, Held, Move, Napi, Outcome, Plan, Rounds,
    Snapshot, Source, SourceId, Spread, StayingTable, Unspread, once, plan,
};
use evenkeel_machine::CpuSet;
use proptest::prelude::*;

const INTERVAL_NS: u64 = 1_000_000_000;

/// A card with the line of each queue on the CPU of the same number; the kernel lets no line be moved.
#[derive(Debug, Clone)]
struct Card {
    queues: u32,
    table: Vec<u32>,
    /// What each bucket brings, in thousandths of a CPU.
    permille: Vec<u64>,
    connections: BTreeMap<u32, u32>,
    /// The CPU on which it all is received.
    consumer: Option<u32>,
    held: Option<Held>,
    refuses: bool,
}

impl Card {
    /// As a driver spreads 16 buckets; those of queue 0 bring this much each.
    fn hot(queues: u32, permille: u64) -> Self {
        let table: Vec<u32> = (0..16).map(|bucket| bucket % queues).collect();
        Self {
            queues,
            permille: table.iter().map(|queue| if *queue == 0 { permille } else { 0 }).collect(),
            table,
            connections: BTreeMap::new(),
            consumer: None,
            held: Some(Held::Managed),
            refuses: false,
        }
    }

    fn permille_of(&self, queue: u32) -> u64 {
        let buckets = self.table.iter().zip(&self.permille);
        buckets.filter(|(of, _)| **of == queue).map(|(_, permille)| permille).sum()
    }

    fn shares(&self) -> Vec<u64> {
        (0..self.queues).map(|queue| self.permille_of(queue)).collect()
    }

    fn snapshot(&self) -> Snapshot {
        let line = |queue: u32| Source {
            id: SourceId::Line(30 + queue),
            name: format!("eth0-TxRx-{queue}"),
            device: Some("eth0".to_owned()),
            queue: Some(queue),
            allowed: CpuSet::first(self.queues),
            effective: [queue].into_iter().collect(),
            interrupts: 1,
            ns: [(queue, self.permille_of(queue) * INTERVAL_NS / 1000)].into(),
            napis: vec![Napi {
                device: "eth0".to_owned(),
                napi_id: queue + 1,
                packets: 1,
                polls: 1,
                received_bytes: self.consumer.map(|cpu| (cpu, 9)).into_iter().collect(),
            }],
            held: self.held,
        };
        let cpu =
            |number| Cpu { number, isolated: false, protected: false, other_ns: 0, net_rx: 0 };
        let device = Device {
            name: "eth0".to_owned(),
            queues: Some(self.queues),
            hash: (!self.table.is_empty()).then(|| "toeplitz".to_owned()),
            table: self.table.clone(),
            connections: self.connections.clone(),
        };
        Snapshot {
            interval_ns: INTERVAL_NS,
            accounting: Accounting::Exact,
            cpus: (0..self.queues).map(cpu).collect(),
            sources: (0..self.queues).map(line).collect(),
            devices: vec![device],
        }
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
        panic!("{step}: the line cannot be moved, or that helps nothing");
    }

    fn spread(&mut self, step: &Spread) -> Result<Outcome, Infallible> {
        if self.refuses {
            return Ok(Outcome::Refused { why: "EBUSY".to_owned() });
        }
        for bucket in &step.buckets {
            let queue = &mut self.table[*bucket as usize];
            assert_eq!(*queue, step.from_queue, "{step:?}");
            *queue = step.to_queue;
        }
        Ok(Outcome::Moved)
    }
}

fn steps(plan: &Plan) -> Vec<(u32, u32, Vec<u32>)> {
    let spreads = plan.spreads.iter();
    spreads.map(|step| (step.from_queue, step.to_queue, step.buckets.clone())).collect()
}

#[test]
fn a_hot_queue_gives_buckets_to_the_queues_of_idle_cpus() {
    let card = Card::hot(4, 150);
    let made = plan(&card.snapshot());
    assert!(made.moves.is_empty() && made.unspread.is_empty(), "{made:?}");
    assert_eq!(steps(&made), [(0, 1, vec![0, 4]), (0, 2, vec![8])]);
    let said = made.spreads[0].to_string();
    let wanted = "eth0: 2 of 4 buckets of queue 0 (eth0-TxRx-0, CPU 0) -> queue 1 (CPU 1), because \
                  interrupts take 60.0 % of CPU 0 and moving a line does not level that; afterwards \
                  about 30.0 % of either";
    assert_eq!(said, wanted);
    // The same where the line could be moved: that would only take its load along.
    assert_eq!(steps(&plan(&Card { held: None, ..card }.snapshot())), steps(&made));
}

#[test]
fn a_table_stays_where_a_change_cannot_help_and_the_reason_is_given() {
    let hot = Card::hot(4, 150);
    let unspread = |card: &Card| {
        let made = plan(&card.snapshot());
        assert!(made.spreads.is_empty(), "{card:?}: {made:?}");
        made.unspread.first().map(|table| table.why)
    };
    let without = Card { table: Vec::new(), ..hot.clone() };
    // Its time is that of queues without buckets, as the kernel's view of a card with one queue.
    let mut snapshot = hot.snapshot();
    snapshot.devices[0].table.clear();
    let table = StayingTable { device: "eth0".to_owned(), why: Unspread::NoTable };
    assert_eq!(plan(&snapshot).unspread, [table]);
    assert_eq!(unspread(&without), None);
    // What the queue brings is received on its CPU; on another one, it is not at home.
    assert_eq!(unspread(&Card { consumer: Some(0), ..hot.clone() }), Some(Unspread::AtHome));
    let away = Card { consumer: Some(3), ..hot.clone() };
    assert!(!plan(&away.snapshot()).spreads.is_empty());
    // An administrator has left two queues in the table, or one.
    let mut two = hot.clone();
    two.table = (0..16).map(|bucket| bucket % 2).collect();
    two.permille = two.table.iter().map(|queue| if *queue == 0 { 75 } else { 0 }).collect();
    assert!(steps(&plan(&two.snapshot())).iter().all(|(_, to, _)| *to == 1));
    let one = Card { table: vec![0; 16], ..hot.clone() };
    assert_eq!(unspread(&one), Some(Unspread::NoOtherQueue));
    // All are as busy; all is little; another process has moved the line.
    let busy = Card { permille: vec![100; 16], ..hot.clone() };
    assert_eq!(unspread(&busy), Some(Unspread::NoGain));
    assert_eq!(unspread(&Card::hot(4, 20)), None);
    assert_eq!(unspread(&Card { held: Some(Held::LetGo), ..hot.clone() }), None);
    let mut single = hot;
    single.table = vec![0, 1, 1, 1];
    single.permille = vec![600, 0, 0, 0];
    assert_eq!(unspread(&single), Some(Unspread::OneBucket));
}

#[test]
fn no_bucket_goes_to_an_isolated_or_protected_cpu() {
    let mut snapshot = Card::hot(4, 150).snapshot();
    snapshot.cpus[1].isolated = true;
    snapshot.cpus[2].protected = true;
    let made = plan(&snapshot);
    assert!(!made.spreads.is_empty());
    assert!(made.spreads.iter().all(|step| step.to == 3), "{made:?}");
}

#[test]
fn rounds_level_a_card_whose_connections_are_known() {
    let mut card = Card::hot(4, 150);
    card.connections = [(0, 1), (4, 1), (8, 1), (12, 1)].into();
    let mut rounds = Rounds::default();
    assert!(card.rounds(&mut rounds, 1).is_empty(), "a burst changes nothing");
    let said = card.rounds(&mut rounds, 1);
    assert!(matches!(&said[..], [Event::Spread(step)] if step.to_queue == 1), "{said:?}");
    let said = card.rounds(&mut rounds, 20);
    assert!(said.iter().all(|event| matches!(event, Event::Spread(_))), "{said:?}");
    assert_eq!(card.shares(), [150; 4]);
    assert!(said.len() <= 4 && card.rounds(&mut rounds, 5).is_empty(), "{said:?}");
}

#[test]
fn a_change_that_does_not_level_is_taken_back_for_good() {
    // All comes by one connection: a bucket cannot be divided.
    let mut card = Card::hot(4, 0);
    let before = card.table.clone();
    for bucket in [0, 12] {
        card.table.clone_from(&before);
        card.permille = vec![0; 16];
        card.permille[bucket] = 600;
        let mut rounds = Rounds::default();
        let said = card.rounds(&mut rounds, 3);
        let [Event::Spread(made), Event::Withdrawn(back)] = &said[..] else { panic!("{said:?}") };
        assert_eq!(made, back);
        assert!(
            said[1].to_string().starts_with("took back eth0: 2 buckets of queue 0"),
            "{said:?}"
        );
        assert_eq!(card.table, before);
        assert!(card.rounds(&mut rounds, 10).is_empty());
        assert_eq!(card.table, before);
    }
}

#[test]
fn what_a_change_did_is_not_judged_by_rounds_at_rest() {
    let mut card = Card::hot(4, 150);
    let mut rounds = Rounds::default();
    assert_eq!(card.rounds(&mut rounds, 2).len(), 1);
    let after = card.table.clone();
    assert!(rounds.rest(&mut card).unwrap().is_empty());
    card.permille = vec![0; 16];
    card.permille[0] = 600;
    assert!(card.rounds(&mut rounds, 1).is_empty());
    assert_eq!(card.table, after);
}

#[test]
fn a_change_is_judged_once_its_queues_bring_something() {
    let mut card = Card::hot(4, 150);
    let mut rounds = Rounds::default();
    assert_eq!(card.rounds(&mut rounds, 2).len(), 1);
    card.permille = vec![0; 16];
    for _ in 0..5 {
        let mut snapshot = card.snapshot();
        snapshot.cpus[0].other_ns = INTERVAL_NS / 10 * 4;
        let said = rounds.round(snapshot, &mut card).unwrap();
        assert!(said.is_empty(), "what others do to CPU 0 says nothing of the change: {said:?}");
    }
    card.permille[0] = 600;
    let said = card.rounds(&mut rounds, 1);
    assert!(matches!(&said[..], [Event::Withdrawn(_)]), "{said:?}");
}

#[test]
fn bursts_that_end_too_soon_change_a_table_a_few_times_only() {
    let mut card = Card::hot(4, 0);
    card.permille[0] = 600;
    let mut rounds = Rounds::default();
    let mut said = Vec::new();
    for _ in 0..10 {
        said.extend(card.rounds(&mut rounds, 2));
        said.extend(rounds.rest(&mut card).unwrap());
    }
    let [Event::Spread(_), Event::Spread(_), Event::Spread(_), Event::Unspread { .. }] = &said[..]
    else {
        panic!("{said:?}")
    };
}

#[test]
fn a_card_that_refuses_is_said_once_and_not_asked_again() {
    let mut card = Card { refuses: true, ..Card::hot(4, 150) };
    let said = card.rounds(&mut Rounds::default(), 10);
    let said: Vec<String> = said.iter().map(Event::to_string).collect();
    assert_eq!(said, ["stays eth0: its RSS indirection table is not changed again: EBUSY"]);
    let said = once(card.snapshot(), Aim::Level, &mut card).unwrap();
    assert_eq!(said.len(), 1, "{said:?}");
}

#[test]
fn once_makes_all_changes_of_a_plan() {
    let mut card = Card::hot(4, 150);
    let said = once(card.snapshot(), Aim::Level, &mut card).unwrap();
    assert_eq!(said.len(), 2, "{said:?}");
    assert_eq!(card.shares(), [150, 300, 150, 0]);
    // Packets go to the CPU that receives them: tables are not for that.
    let mut card = Card::hot(4, 150);
    assert!(once(card.snapshot(), Aim::SourceAware, &mut card).unwrap().is_empty());
}

/// Cards with any table, of which each bucket brings what it is taken for.
fn cards() -> impl Strategy<Value = Card> {
    (2u32..6).prop_flat_map(|queues| {
        let table = prop::collection::vec(0..queues, 1..64);
        (table, 0u64..40, prop::bool::ANY).prop_map(move |(table, permille, is_managed)| Card {
            permille: vec![permille; table.len()],
            table,
            held: is_managed.then_some(Held::Managed),
            ..Card::hot(queues, 0)
        })
    })
}

proptest! {
    #[test]
    fn a_plan_takes_no_queue_its_last_bucket_and_moves_none_twice(card in cards()) {
        let snapshot = card.snapshot();
        let mut table = card.table.clone();
        let mut moved = Vec::new();
        for step in plan(&snapshot).spreads {
            prop_assert!(!step.buckets.is_empty() && step.from != step.to, "{step:?}");
            prop_assert!(table.contains(&step.to_queue), "{step:?}");
            let count = table.iter().filter(|queue| **queue == step.from_queue).count();
            prop_assert_eq!(count, step.of_buckets);
            for bucket in &step.buckets {
                prop_assert_eq!(table[*bucket as usize], step.from_queue);
                prop_assert!(!moved.contains(bucket));
                table[*bucket as usize] = step.to_queue;
                moved.push(*bucket);
            }
            prop_assert!(table.contains(&step.from_queue), "{step:?}");
            prop_assert!(step.after_pct < step.from_pct, "{step:?}");
        }
    }

    #[test]
    fn what_is_as_it_is_taken_for_is_levelled_and_then_left(card in cards()) {
        // Its lines stay, so that this is about tables alone.
        let mut card = Card { held: Some(Held::Managed), ..card };
        let largest = |card: &Card| card.shares().into_iter().max().unwrap();
        let before = largest(&card);
        let mut rounds = Rounds::default();
        let said = card.rounds(&mut rounds, 60);
        prop_assert!(largest(&card) <= before);
        prop_assert!(said.iter().all(|event| matches!(event, Event::Spread(_))), "{said:?}");
        prop_assert!(card.rounds(&mut rounds, 5).is_empty(), "it goes on");
    }
}
