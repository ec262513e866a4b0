//! The shapes of workloads: name, numbers with defaults, description.

/// Each shape: its name, its numbers with defaults, and a description.
pub const SHAPES: [(&str, &str, &str); 10] = [
    ("hogs", "tasks=8,work=100ms", "tasks that only compute"),
    (
        "barrier",
        "tasks=8,work=10ms,rounds=20,spread=0",
        "threads of one program that meet at a barrier after each round of work (spread: \
         percent of the work that is drawn at random)",
    ),
    (
        "pool",
        "clients=16,servers=8,think=10ms,work=1ms,requests=50",
        "clients that think, ask a pool of server threads and wait for the answer",
    ),
    (
        "arrivals",
        "tasks=100,gap=3ms,work=100ms,io=25,burst=5ms",
        "programs that arrive one after the other at random times; a part of them (io: \
         percent) sleeps as long as it works, burst by burst",
    ),
    (
        "groups",
        "programs=4,threads=8,work=50ms,rounds=4,pause=5ms,kib=0",
        "programs of several threads each, which work and sleep in turn (kib: memory that \
         all threads of a program use, on machines with cache costs)",
    ),
    (
        "background",
        "cpus=4,pct=60,each=4,work=2ms,rounds=200,gap=500us",
        "tasks that arrive one after the other, and work and sleep in turn for times drawn \
         at random; each: tasks per CPU; pct: percent of a CPU that these use together",
    ),
    (
        "paper002",
        "system=amc1,table=w1,processes=100,pace=48,random=2ms,almost=20us,homes=1",
        "a cell of the tables of paper 002: processes of one burst each, for the machine \
         of that name (pace: percent of the paper's time that they take on a speed core; \
         random, almost: mean time between random arrivals, and between arrivals at almost \
         the same time; homes: where a process's memory is: 1 on a node that is known at fork, 0 \
         where it first runs, 2 by how the process came to be, known as a real kernel tells it, 3 the \
         same, known at fork)",
    ),
    (
        "memory",
        "programs=10,threads=100,block=4,total=10,sizes=1,halves=0,touch=10000,gap=50us",
        "programs whose threads all write to one block (block: MiB) of their program \
         repeatedly, until together they have written a total (total: GiB); sizes: the \
         programs form rows of this length, in which the second program writes twice as \
         much as the first, the third three times, and so on; halves: the number of CPUs \
         of which rows get the lower and the upper half in turn (0: all run anywhere); \
         touch: KiB that a thread writes in 1 ms if they are cached; gap: mean time until \
         a program creates its next thread",
    ),
    (
        "spawn",
        "threads=1000,work=20us",
        "a program that creates a thread and waits for its end, repeatedly",
    ),
    (
        "tiers",
        "clients=200,web=100,database=100,think=50ms,work=1ms,query=2ms,requests=50,web_kib=2048,\
         database_kib=2048,touch=300",
        "clients that think, ask a web server's threads, which ask those of a database, \
         and wait for the answer (work, query: mean times of a request there; web_kib, \
         database_kib: memory that the threads of each write to; touch: KiB in 1 ms of \
         work)",
    ),
];

/// The names of all shapes.
pub(super) fn names() -> String {
    SHAPES.map(|(name, _, _)| name).join(", ")
}
