// SPDX-License-Identifier: MIT
//! What can go wrong, and why it did.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

/// The reason in a sentence, for people; its wording may change.
pub type Reason = Cow<'static, str>;

/// Why a call failed: one variant for each status of the C library.
///
/// After [`Invalid`](Error::Invalid), [`Overflow`](Error::Overflow),
/// [`NotReady`](Error::NotReady) and [`Unsupported`](Error::Unsupported) nothing has been
/// written; after the others the outputs of a run are undefined (but initialised).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An argument is outside what its text allows, or a slice is too short.
    Invalid(Reason),
    /// Memory could not be had.
    NoMemory(Reason),
    /// A product of sizes, or an extent for BLAS, overflows.
    Overflow(Reason),
    /// The handle is not ready: a weight of a layer is missing.
    NotReady(Reason),
    /// A valid wish that this build or CPU cannot serve.
    Unsupported(Reason),
    /// The BLAS found at run time is unusable.
    Blas(Reason),
    /// A fault of libattn; please report it.
    Internal(Reason),
    /// A status of a newer library that this crate does not know.
    Unknown(i32, Reason),
}

/// The result of everything that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The reason in a sentence.
    pub fn reason(&self) -> &str {
        match self {
            Error::Invalid(why)
            | Error::NoMemory(why)
            | Error::Overflow(why)
            | Error::NotReady(why)
            | Error::Unsupported(why)
            | Error::Blas(why)
            | Error::Internal(why)
            | Error::Unknown(_, why) => why,
        }
    }

    /// A status that is not `ATTN_OK`; without a reason it is the library's short text.
    pub(crate) fn new(status: sys::attn_status, why: Option<Reason>) -> Self {
        let why = why.unwrap_or_else(|| status_text(status).into());
        match status {
            sys::ATTN_EINVAL => Error::Invalid(why),
            sys::ATTN_ENOMEM => Error::NoMemory(why),
            sys::ATTN_EOVERFLOW => Error::Overflow(why),
            sys::ATTN_ESTATE => Error::NotReady(why),
            sys::ATTN_EUNSUPPORTED => Error::Unsupported(why),
            sys::ATTN_EBLAS => Error::Blas(why),
            sys::ATTN_EINTERNAL => Error::Internal(why),
            _ => Error::Unknown(status, why),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for Error {}

/// The status of a call as a result.
pub(crate) fn check(status: sys::attn_status) -> Result<()> {
    if status == sys::ATTN_OK {
        return Ok(());
    }
    Err(Error::new(status, None))
}

pub(crate) fn static_text(text: *const std::os::raw::c_char) -> &'static str {
    // SAFETY: attn_version() and attn_status_string() return static strings, never NULL.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

fn status_text(status: sys::attn_status) -> &'static str {
    // SAFETY: takes any number.
    static_text(unsafe { sys::attn_status_string(status) })
}

/// Calls a function of C that writes text, with room enough: once to ask, once to get it.
pub(crate) fn text_of(
    mut call: impl FnMut(*mut std::os::raw::c_char, usize, *mut usize) -> sys::attn_status,
) -> (sys::attn_status, String) {
    let mut needed = 0;
    call(std::ptr::null_mut(), 0, &mut needed);
    let mut bytes = vec![0u8; needed.max(1)];
    let status = call(bytes.as_mut_ptr().cast(), bytes.len(), &mut needed);
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    (status, String::from_utf8_lossy(&bytes[..end]).into_owned())
}
