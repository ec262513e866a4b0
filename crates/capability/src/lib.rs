//! Snapshot, effective capability, ECPT and the policies that turn them into moves. Pure: no I/O, no clock, no randomness.
