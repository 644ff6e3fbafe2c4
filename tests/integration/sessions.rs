//! dblock means the same under every setting that a server may give a session.
