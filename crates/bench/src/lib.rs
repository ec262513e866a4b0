//! The papers' experiments: programs, noise, statistics and side-by-side reports.
