package migrations

// LockID is the lock that migrations take in turns.
const LockID = lockID
