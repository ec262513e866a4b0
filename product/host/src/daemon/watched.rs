//! Programs that are only watched: at the request of their user, and until that user has them balanced
//! again.

use evenkeel_control::Peer;
use nix::errno::Errno;

use super::admission::{Refusal, refuse};
use super::programs::Programs;

impl Programs {
    /// Only watches a program from now on (`watch`), or balances it again, if it is the peer's.
    pub fn watch(&mut self, program: u32, watch: bool, peer: &Peer) -> Result<(), Refusal> {
        let joined = self.joined.get_mut(&program).filter(|joined| peer.may_steer(joined.uid));
        let Some(joined) = joined else {
            return refuse(Errno::ESRCH, format!("you have no program {program} here"));
        };
        if self.settings.options.dry_run || !self.balancer.can_move() {
            return refuse(Errno::EPERM, "this daemon moves nothing (--dry-run, or no journal)");
        }
        joined.watch = watch;
        self.balancer.set_watched(program, watch);
        self.save();
        Ok(())
    }
}
