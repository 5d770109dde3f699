//! A terminal for a command, and what it shows.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::fs::File;
use std::io::Read;
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::common::until;

const COLUMNS: NonZeroU16 = NonZeroU16::new(150).unwrap();

/// What a terminal shows, and all that was written to it.
pub(crate) struct Screen {
    pub(crate) shown: vt100::Parser,
    pub(crate) written: Vec<u8>,
}

/// A terminal, which is read until nobody has it any more.
pub(crate) struct Terminal {
    /// What is typed goes in here.
    pub(crate) keyboard: File,
    screen: Arc<Mutex<Screen>>,
    reader: JoinHandle<()>,
}

impl Terminal {
    /// One of so many rows, and the end of it that a command takes for its own.
    pub(crate) fn open(rows: NonZeroU16) -> (Terminal, OwnedFd) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let main = openpt(flags).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        tcsetwinsize(&main, Winsize { ws_row: rows.get(), ws_col: COLUMNS.get(), ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let end = ioctl_tiocgptpeer(&main, flags).unwrap();
        let screen = Screen { shown: vt100::Parser::new(rows, COLUMNS, 0), written: Vec::new() };
        let screen = Arc::new(Mutex::new(screen));
        let keyboard = File::from(main);
        let (mut main, seen) = (keyboard.try_clone().unwrap(), screen.clone());
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // It fails once the last end is closed.
            while let Ok(count @ 1..) = main.read(&mut bytes) {
                let mut seen = seen.lock().unwrap();
                seen.shown.process(&bytes[..count]);
                seen.written.extend_from_slice(&bytes[..count]);
            }
        });
        (Terminal { keyboard, screen, reader }, end)
    }

    /// What there is now.
    pub(crate) fn screen(&self) -> MutexGuard<'_, Screen> {
        self.screen.lock().unwrap()
    }

    /// Waits until nobody has it any more: all that was drawn.
    pub(crate) fn end(self) -> Screen {
        until("the end of what is drawn", || self.reader.is_finished());
        self.reader.join().unwrap();
        Arc::into_inner(self.screen).unwrap().into_inner().unwrap()
    }
}
