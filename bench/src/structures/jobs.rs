//! The ops that are measured: their names, and the round trips that each promises.

/// An op of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    CounterAdd,
    CounterFirstAdd,
    CounterGet,
    CounterReset,
    FastAdd,
    FastGet,
    LockCycle,
    LockTurns,
    LockRenew,
    LockStatus,
    SetAdd,
    SetAddMany,
    SetRemove,
    SetMembers,
    SetHas,
    SetStat,
    SetCompact,
    ArrayPush,
    ArrayElements,
    CacheHit,
    LogPut,
    LogFetch,
    VisitorsHit,
    VisitorsHitNamed,
    VisitorsGet,
    TablePut,
    TableGet,
    QueuePush,
    QueueTake,
    StackPush,
    StackPop,
}

impl Job {
    pub(super) const ALL: [Job; 31] = [
        Job::CounterAdd,
        Job::CounterFirstAdd,
        Job::CounterGet,
        Job::CounterReset,
        Job::FastAdd,
        Job::FastGet,
        Job::LockCycle,
        Job::LockTurns,
        Job::LockRenew,
        Job::LockStatus,
        Job::SetAdd,
        Job::SetAddMany,
        Job::SetRemove,
        Job::SetMembers,
        Job::SetHas,
        Job::SetStat,
        Job::SetCompact,
        Job::ArrayPush,
        Job::ArrayElements,
        Job::CacheHit,
        Job::LogPut,
        Job::LogFetch,
        Job::VisitorsHit,
        Job::VisitorsHitNamed,
        Job::VisitorsGet,
        Job::TablePut,
        Job::TableGet,
        Job::QueuePush,
        Job::QueueTake,
        Job::StackPush,
        Job::StackPop,
    ];
    /// Those that many tasks may do on one handle at the same time.
    pub(super) const SHARED: [Job; 5] = [Job::CounterAdd, Job::FastAdd, Job::SetAdd, Job::LogPut, Job::VisitorsHit];

    pub(super) fn name(self) -> &'static str {
        match self {
            Job::CounterAdd => "counter add",
            Job::CounterFirstAdd => "counter first add, and release of the slot",
            Job::CounterGet => "counter get (16 slots)",
            Job::CounterReset => "counter add and reset",
            Job::FastAdd => "fast counter add",
            Job::FastGet => "fast counter get",
            Job::LockCycle => "lock acquire and release",
            Job::LockTurns => "lock acquire and release, two handles in turn",
            Job::LockRenew => "lock renew",
            Job::LockStatus => "lock status",
            Job::SetAdd => "set add of 1 member",
            Job::SetAddMany => "set add of 100 members",
            Job::SetRemove => "set remove of 1 member",
            Job::SetMembers => "set members (100)",
            Job::SetHas => "set has (of 100)",
            Job::SetStat => "set stat (of 100)",
            Job::SetCompact => "set add and compact (of 100)",
            Job::ArrayPush => "array push of 1 element",
            Job::ArrayElements => "array elements (100)",
            Job::CacheHit => "cache hit of 100 bytes",
            Job::LogPut => "log put of 1 event",
            Job::LogFetch => "log fetch (100 events)",
            Job::VisitorsHit => "visitors hit",
            Job::VisitorsHitNamed => "visitors hit that names a new one",
            Job::VisitorsGet => "visitors get (100 named)",
            Job::TablePut => "table put of an existing entry",
            Job::TableGet => "table get",
            Job::QueuePush => "queue push of 1 item",
            Job::QueueTake => "queue claim and ack",
            Job::StackPush => "stack push of 1 item",
            Job::StackPop => "stack pop",
        }
    }

    /// The round trips that the documentation promises a handle in use.
    pub(super) fn round_trips(self) -> usize {
        match self {
            // A turn finds that another wrote last, and takes the lock with what it saw.
            Job::CounterFirstAdd | Job::CounterReset | Job::LockTurns | Job::SetCompact => 3,
            Job::LockCycle | Job::LogFetch | Job::QueueTake | Job::StackPop => 2,
            _ => 1,
        }
    }
}
