//! Not for programs: every decoder of the structures, for the proof's fuzzing.
