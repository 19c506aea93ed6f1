package delivery

// Path is where a session's quarantine repository is, once Prepare has made it.
// It is for reading with git only.
func (s *Store) Path(session string) string { return s.quarantine(session) }
