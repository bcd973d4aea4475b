package migrations

// LockID is the lock that migrations take in turns.
const LockID = lockID

// CreateFile writes a file that does not exist.
var CreateFile = create
