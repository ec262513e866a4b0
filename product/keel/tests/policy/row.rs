//! `bpf/keel/row.h`: tasks in the order of vruntime, as in a sorted list.

use proptest::prelude::*;

use crate::native::*;

#[derive(Debug, Clone)]
enum Step {
    Add {
        vruntime: u64,
        tag: u32,
    },
    /// The task at this position from the front, modulo the length.
    Remove(usize),
    /// A task that is not there.
    Miss,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0u64..400, 0u32..3).prop_map(|(vruntime, tag)| Step::Add { vruntime, tag }),
        2 => Just(Step::Remove(0)),
        1 => any::<usize>().prop_map(Step::Remove),
        1 => Just(Step::Miss),
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    #[test]
    fn a_row_is_a_sorted_list(
        steps in steps(), base: u64, first: u32, room in 1u32..=ROW_PLACES as u32,
    ) {
        let (mut row, mut list) = (Row::empty(first), Vec::<RowEntry>::new());
        for (pid, step) in (1u32..).zip(steps) {
            match step {
                Step::Add { vruntime, tag } => {
                    let vruntime = base.wrapping_add(vruntime);
                    let task = RowEntry { vruntime, tag, pid, weight: pid, pad: 0 };
                    let at = list.partition_point(|other| {
                        other.vruntime.wrapping_sub(task.vruntime) as i64 <= 0
                    });
                    list.insert(at, task);
                    let has_room = list.len() <= room as usize;
                    list.truncate(room as usize);
                    prop_assert_eq!(row.add(task, room), has_room);
                }
                Step::Remove(at) => {
                    if let Some(place) = at.checked_rem(list.len()) {
                        row.remove(list.remove(place).pid);
                    }
                }
                Step::Miss => row.remove(u32::MAX),
            }
            prop_assert_eq!(row.tasks(), list.clone());
            for tag in 0..3 {
                let place = list.iter().position(|task| task.tag == tag);
                let looked = place.map_or(list.len(), |place| place + 1) as u32;
                prop_assert_eq!(row.best(tag), (place.map(|place| list[place]), looked));
            }
        }
    }
}

#[test]
fn a_smaller_room_leaves_out_the_last_task() {
    let task = |vruntime, pid| RowEntry { vruntime, pid, ..RowEntry::default() };
    let mut row = Row::empty(0);
    (1..=4).for_each(|pid| assert!(row.add(task(u64::from(pid) * 10, pid), 4)));
    // The room is smaller now: the row shrinks by and by.
    assert!(!row.add(task(5, 9), 2));
    assert_eq!(row.tasks().iter().map(|task| task.pid).collect::<Vec<_>>(), [9, 1, 2, 3]);
    assert!(!row.add(task(50, 10), 2));
    assert_eq!(row.tasks().len(), 4);
}
