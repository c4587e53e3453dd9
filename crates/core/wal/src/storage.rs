//! The storage of a log.

/// Numbered files. Only the last created file is appended to.
pub trait Storage {
    /// A failure of the storage.
    type Error;

    /// The numbers of all files, in rising order.
    ///
    /// # Errors
    /// The files cannot be listed.
    fn list(&mut self) -> Result<Vec<u64>, Self::Error>;

    /// The content of a file.
    ///
    /// # Errors
    /// The file does not exist, or cannot be read.
    fn read(&mut self, number: u64) -> Result<Vec<u8>, Self::Error>;

    /// Makes the content durable that [`Storage::read`] returned for a file other than the last created file.
    ///
    /// # Errors
    /// The content may not be durable.
    fn sync_old(&mut self, number: u64) -> Result<(), Self::Error>;

    /// Makes an empty file, the target of [`Storage::append`] from now on.
    ///
    /// # Errors
    /// A file has this number already, or the file cannot be made.
    fn create(&mut self, number: u64) -> Result<(), Self::Error>;

    /// Appends to the last created file.
    ///
    /// # Errors
    /// Not all bytes were written.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Makes the last created file durable, with the name and all appended bytes.
    ///
    /// # Errors
    /// File or bytes may not be durable. A second attempt does not help.
    fn sync(&mut self) -> Result<(), Self::Error>;

    /// Removes a file other than the last created file. After a crash the file may be there again.
    ///
    /// # Errors
    /// The file still exists.
    fn remove(&mut self, number: u64) -> Result<(), Self::Error>;
}
