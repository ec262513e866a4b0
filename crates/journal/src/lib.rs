//! Every change to the system, written down before it is made, and taken back by whoever is still alive.
