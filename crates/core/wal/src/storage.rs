//! Where a log is kept.

/// A place for numbered files, of which the last one created is appended to.
pub trait Storage {
    /// What goes wrong.
    type Error;

    /// The numbers of the files that are there, in rising order.
    ///
    /// # Errors
    /// It cannot be told.
    fn list(&mut self) -> Result<Vec<u64>, Self::Error>;

    /// The content of a file.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    fn read(&mut self, number: u64) -> Result<Vec<u8>, Self::Error>;

    /// Makes durable what [`Storage::read`] gives of a file that is not the last one created.
    ///
    /// # Errors
    /// It is not known to be durable.
    fn sync_old(&mut self, number: u64) -> Result<(), Self::Error>;

    /// Makes an empty file, to which is appended from now on.
    ///
    /// # Errors
    /// There is one with this number, or it cannot be made.
    fn create(&mut self, number: u64) -> Result<(), Self::Error>;

    /// Writes to the end of the last file that was created.
    ///
    /// # Errors
    /// Not all was written.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Makes durable that the last file that was created exists and holds what was appended.
    ///
    /// # Errors
    /// It is not known to be durable. Trying again does not help.
    fn sync(&mut self) -> Result<(), Self::Error>;

    /// Removes a file that is not the last one created. It may come back in a crash.
    ///
    /// # Errors
    /// It is still there.
    fn remove(&mut self, number: u64) -> Result<(), Self::Error>;
}
