//! Part `restarts`.
use crate::{Budget, Findings};

pub(crate) fn run(_budget: Budget) -> Findings {
    Findings::default()
}
