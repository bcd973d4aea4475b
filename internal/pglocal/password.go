package pglocal

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// newPassword makes the superuser's password. Without one any local user could connect, and a superuser of PostgreSQL may
// run programs as the server's account.
func newPassword() string { return rand.Text() }

// passwordVerifier is what the server keeps instead of a password. Made here, it takes fewer iterations of its hash than
// the server's 4096, which each connection would pay for: they make guessing slow, and nobody guesses 128 random bits. lib/pq
// refuses a number of less than four digits.
//
// The program of before version 14 reads at most 99 bytes from its password file, and a verifier is longer.
func passwordVerifier(password string, major float64) (string, error) {
	const iterations = 1000
	if major < 14 {
		return password, nil
	}
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return "", err
	}
	storedKey := sha256.Sum256(sign(salted, "Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s",
		iterations, encode(salt), encode(storedKey[:]), encode(sign(salted, "Server Key"))), nil
}

func sign(key []byte, message string) []byte {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(message)) // never fails
	return mac.Sum(nil)
}
