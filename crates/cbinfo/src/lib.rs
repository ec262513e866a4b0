//! Exact accounting of stolen CPU time and run time, by BPF (the paper's cbinfo kernel module).
