//! `libevenkeel-dev` in a system with a compiler, which has nothing else of evenkeel: the header as it
//! is installed is found, and the example is compiled by what its comment says, linked, and run.

use crate::system::System;
use crate::{APT, files, left_since, packages};

const EXAMPLE: &str = "/usr/share/doc/libevenkeel-dev/examples/siblings.c";

/// Prints the request of one program, and answers it as the keel does.
const KEEL: &str = r#"use IO::Socket::UNIX;
mkdir "/run/evenkeel";
my $keel = IO::Socket::UNIX->new(Local => "/run/evenkeel/keel.sock", Listen => 1) or die;
system("/program/siblings 77 &");
my $program = $keel->accept;
print scalar <$program>;
print $program "{\"errno\":0,\"what\":\"\"}\n";
close $program;
unlink "/run/evenkeel/keel.sock";
rmdir "/run/evenkeel";
"#;

pub fn compile_and_run(suite: &str) {
    let (folder, names) = packages();
    let system = System::of(suite, &folder);
    system
        .run(&format!("apt-get --quiet=2 update && {APT} install gcc libc6-dev && mkdir /program"));
    let before = files(&system);
    let name = names.iter().find(|name| name.starts_with("libevenkeel-dev_")).unwrap();
    system.run(&format!("{APT} install /packages/{name}"));
    // Two files include it, and one more than once.
    system.run(&format!(
        "cd /program && printf '#include <evenkeel.h>\\n#include <evenkeel.h>\\n' >second.c && \
         cc -Wall -Wextra -Werror {EXAMPLE} second.c -o siblings"
    ));
    let alone = system.run("/program/siblings 77 2>&1 || echo $?");
    assert_eq!(alone, "the keel does not run; start it with: evenkeel sched --order ias\n1\n");
    let asked = system.run(&format!("perl -e '{KEEL}'"));
    let request = r#""pid":77,"agg":1,"bonus_type":1,"bonus_value":3,"limit":0"#;
    assert_eq!(asked, format!("{{\"req\":\"ias_agg\",\"args\":{{{request}}}}}\n"));
    system.run(&format!("rm /program/* && {APT} purge libevenkeel-dev"));
    assert_eq!(left_since(&before, &system), [] as [String; 0], "left after the purge");
}
