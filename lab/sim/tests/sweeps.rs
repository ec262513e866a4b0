//! Sweeps resume where they were interrupted, and can be spread over jobs; the file has the same bytes
//! however its rows were made.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use evenkeel_keel::{Options, Slice};
use evenkeel_machine::Machine;
use evenkeel_sim::{Grid, Row, Scheduler, Shard, Workers, read_rows, sweep};

const ALL: Shard = Shard { index: 1, of: 1 };

fn grid(slices_us: &[u64], seeds: u64) -> Grid {
    let scheduler = |us: &u64| {
        let slice = Slice::from_us(*us).unwrap();
        Scheduler::Keel(Options { slice, ..Options::default() })
    };
    Grid {
        workloads: vec!["arrivals:tasks=20,work=20ms,gap=1ms".to_owned()],
        machines: vec![Machine::preset("small").unwrap()],
        schedulers: slices_us.iter().map(scheduler).collect(),
        aggregation: None,
        together: None,
        seeds: 1..seeds + 1,
    }
}

fn swept(grid: &Grid, shard: Shard, jobs: usize, out: &Path) -> (usize, Vec<Row>) {
    let swept = sweep(grid, shard, Workers::Threads(jobs), out, |_, _| {}).unwrap();
    assert_eq!(swept.lost, []);
    (swept.done, read_rows(out).unwrap())
}

fn bytes(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn an_interrupted_sweep_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    let (done, rows) = swept(&grid(&[4000], 6), ALL, 1, &whole);
    assert_eq!((done, rows.len()), (6, 6));
    // Killed within the third row.
    let text = std::fs::read_to_string(&whole).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    std::fs::write(&cut, format!("{}\n{}\n{}", lines[0], lines[1], &lines[2][..40])).unwrap();
    assert_eq!(swept(&grid(&[4000], 6), ALL, 2, &cut).0, 4);
    assert_eq!(bytes(&cut), text, "rows of two threads are those of one");
    assert_eq!(swept(&grid(&[4000], 6), ALL, 1, &cut).0, 0);
}

#[test]
fn all_shards_together_make_the_whole_sweep() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    let (_, rows) = swept(&grid(&[4000, 8000], 4), ALL, 1, &whole);
    let places = rows.iter().map(|row| (row.slice_us, row.report.seed));
    assert!(places.is_sorted(), "in the order of their names: {rows:?}");
    for index in [2, 3, 1] {
        swept(&grid(&[4000, 8000], 4), Shard { index, of: 3 }, 1, &parts);
    }
    assert_eq!(bytes(&parts), bytes(&whole));
    for nonsense in ["0/3", "4/3", "1", "x/3", "1/0"] {
        assert!(nonsense.parse::<Shard>().is_err(), "{nonsense}");
    }
    assert_eq!("2/3".parse(), Ok(Shard { index: 2, of: 3 }));
}

#[test]
fn a_malformed_row_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows");
    std::fs::write(&path, "{}\n").unwrap();
    let why = refused(&grid(&[4000], 1), &path);
    assert!(why.contains("rows:1: missing field"), "{why}");
}

fn refused(grid: &Grid, out: &Path) -> String {
    sweep(grid, ALL, Workers::Threads(1), out, |_, _| {}).unwrap_err().to_string()
}

#[test]
fn rows_of_another_input_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (out, file) = (dir.path().join("rows"), dir.path().join("load.json"));
    let load = |ms: u32| {
        let text = format!("{{ \"tasks\": {{ \"a\": {{ \"loop\": 2, \"run\": {ms}000 }} }} }}");
        std::fs::write(&file, text).unwrap();
    };
    load(5);
    let mut grid = grid(&[4000], 1);
    grid.workloads = vec![file.to_str().unwrap().to_owned()];
    assert_eq!(swept(&grid, ALL, 1, &out).0, 1);
    assert_eq!(swept(&grid, ALL, 1, &out).0, 0);
    let mut costs = grid.clone();
    costs.machines[0].costs.switch_ns += 1;
    let mut slower = grid.clone();
    slower.machines[0].cpus[1].capability = 512;
    let mut capacity = grid.clone();
    let options = Options { static_capacity: true, ..Options::default() };
    capacity.schedulers = vec![Scheduler::Keel(options)];
    for other in [costs, slower, capacity] {
        let why = refused(&other, &out);
        assert!(why.contains("rows:1: ") && why.contains("made of another input"), "{why}");
    }
    load(6);
    assert!(refused(&grid, &out).contains("made of another input"));
    load(5);
    assert_eq!(swept(&grid, ALL, 1, &out).0, 0);
}
