//! The live Linux: calibrate, observe, act.
