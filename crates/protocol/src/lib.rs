//! What our processes say to each other: frames, versions, encoding
