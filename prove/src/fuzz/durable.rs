//! To come.
pub(super) const TARGETS: &[super::Target] = &[];
