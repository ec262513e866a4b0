//! hwloc's XML: what `lstopo` writes is read, and anything else is refused with the field and the rule.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use evenkeel_machine::{CoreType, Error, Machine};
use proptest::prelude::*;

/// Made by `lstopo -i "pack:2 numa:1(memory=8GB) l3:2 core:2 pu:2" --of xml` (hwloc 2.9), without the
/// parts that are not read.
const TWO_PACKAGES: &str = include_str!("../../../tests/fixtures/machines/hwloc/two-packages.xml");

fn parse(text: &str) -> Result<Machine, Error> {
    Machine::parse_hwloc(text, "test", "test.xml")
}

fn wrong(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_xml_of_lstopo_is_read() {
    let machine = parse(TWO_PACKAGES).unwrap();
    assert_eq!((machine.cpus.len(), machine.nodes.len(), machine.online_cores()), (16, 2, 8));
    assert!(machine.is_smt() && !machine.is_asymmetric());
    assert_eq!(machine.cpu(5).unwrap().siblings.to_string(), "4-5");
    assert_eq!(machine.llc_cpus(machine.cpu(9).unwrap().llc).to_string(), "8-11");
    assert_eq!(machine.node(1).unwrap().cpus.to_string(), "8-15");
    assert_eq!(machine.node(1).unwrap().memory_bytes, Some(8_000_000_000));
    assert_eq!((machine.distance(0, 0), machine.distance(0, 1)), (Some(10), Some(20)));
    // As a machine file it is the same machine.
    assert_eq!(Machine::parse_toml(&machine.to_toml(), "again").unwrap(), machine);
}

#[test]
fn distances_and_kinds_are_read() {
    let more = "<distances2 type=\"NUMANode\" nbobjs=\"2\" kind=\"5\" name=\"NUMALatency\" \
                indexing=\"os\">\
                <indexes length=\"4\">1 0 </indexes>\
                <u64values length=\"6\">10 31 </u64values><u64values length=\"6\">32 10</u64values>\
                </distances2>\
                <cpukind cpuset=\"0x000000ff\"><info name=\"CoreType\" value=\"IntelAtom\"/>\
                <info name=\"FrequencyMaxMHz\" value=\"2000\"/></cpukind>\
                <cpukind cpuset=\"0xffff,0x0000ff00\"><info name=\"CoreType\" value=\"IntelCore\"/>\
                <info name=\"FrequencyMaxMHz\" value=\"4000\"/></cpukind></topology>";
    let machine = parse(&TWO_PACKAGES.replace("</topology>", more)).unwrap();
    assert_eq!((machine.distance(1, 0), machine.distance(0, 1)), (Some(31), Some(32)));
    let kinds: Vec<_> =
        [0, 8].map(|cpu| machine.cpu(cpu).unwrap()).map(|cpu| cpu.sources.core_type).to_vec();
    assert_eq!(kinds, [Some(CoreType::Efficient), Some(CoreType::Performance)]);
    assert_eq!(machine.cpu(15).unwrap().sources.max_freq_khz, Some(4_000_000));
    let capabilities = [0, 15].map(|cpu| machine.cpu(cpu).unwrap().capability);
    assert!(capabilities[0] < capabilities[1], "{capabilities:?}");
}

#[test]
fn malformed_files_are_refused_with_field_and_rule() {
    for (text, expected) in [
        ("", "machine file test.xml: no XML: "),
        (
            "<topology version=\"1.0\"/>",
            "<topology> version 1.0: expected <topology version=\"2.x\">",
        ),
        ("<machine/>", "<machine> version 1: expected"),
        ("<topology version=\"2.0\"/>", "topology: has no object of type PU"),
        (
            "<topology version=\"2.0\"><object type=\"PU\" os_index=\"x\"/></topology>",
            "test.xml:1: PU os_index: \"x\" is not a number",
        ),
        (
            "<topology version=\"2.0\"><object type=\"PU\" os_index=\"9000\"/></topology>",
            "PU os_index: 9000 is above 8191",
        ),
        (
            &TWO_PACKAGES.replacen("cpuset=\"0x0000ff00\"", "cpuset=\"0xzz\"", 9),
            "NUMANode cpuset: \"0xzz\" is not a mask",
        ),
        (
            &TWO_PACKAGES.replace("0x0000ff00", "0x00000f00"),
            "NUMANode cpuset: CPUs 12-15 are in no node",
        ),
        (
            &TWO_PACKAGES.replace(
                "</topology>",
                "<distances2 type=\"NUMANode\" name=\"NUMALatency\"><indexes>0 1</indexes>\
                 <u64values>10 20 20</u64values></distances2></topology>",
            ),
            "distances2 u64values: 3 values for 2 nodes",
        ),
        (
            &TWO_PACKAGES.replace(
                "</topology>",
                "<distances2 type=\"NUMANode\" name=\"NUMALatency\"><indexes>0 1</indexes>\
                 <u64values>10 -1 20 10</u64values></distances2></topology>",
            ),
            "distances2 u64values: \"-1\" is not a number",
        ),
        (
            &TWO_PACKAGES.replace(
                "</topology>",
                "<distances2 type=\"NUMANode\" name=\"NUMALatency\"><indexes>0 1</indexes>\
                 <u64values>10 900 20 10</u64values></distances2></topology>",
            ),
            "nodes[0].distances",
        ),
    ] {
        let why = wrong(text);
        assert!(why.contains(expected), "{expected}: {why}");
    }
}

#[test]
fn large_files_are_refused() {
    let missing = Machine::from_hwloc(Path::new("/no/such.xml")).unwrap_err().to_string();
    assert!(missing.starts_with("cannot read machine file /no/such.xml"), "{missing}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.xml");
    std::fs::File::create(&path).unwrap().set_len((16 << 20) + 1).unwrap();
    let why = Machine::from_hwloc(&path).unwrap_err().to_string();
    assert!(why.contains("at most 16777216 are read"), "{why}");
    let path = directory.path().join("rack-7.xml");
    std::fs::write(&path, TWO_PACKAGES).unwrap();
    assert_eq!(Machine::from_hwloc(&path).unwrap().name, "rack-7");
}

proptest! {
    /// Parser fuzzing: any text is a machine or an error.
    #[test]
    fn mutilated_files_are_refused_or_read(
        cut in 0..TWO_PACKAGES.len(),
        length in 0..200_usize,
        with in "[0-9a-fx<>\"/ ]{0,8}",
    ) {
        let end = (cut + length).min(TWO_PACKAGES.len());
        let _ = parse(&format!("{}{with}{}", &TWO_PACKAGES[..cut], &TWO_PACKAGES[end..]));
    }
}
