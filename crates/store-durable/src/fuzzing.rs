//! Not for programs: stored bytes and journals, read, for the proof's fuzzing.
