//! The secret that the processes of a run share, and proofs that a process knows it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io;

/// A secret text. Without one everybody can prove that they know it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Token(String);

/// Bytes that one side of a connection draws at random, so that no earlier proof is valid again.
pub(super) type Nonce = [u8; 32];

/// An HMAC-SHA256.
pub(super) type Proof = [u8; 32];

impl Token {
    /// That secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// A new random secret of 64 hexadecimal digits.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> io::Result<Self> {
        Ok(Self(nonce()?.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The secret, for a process that is started.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Whether there is no secret.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// HMAC-SHA256 with the secret as key, of the purpose, both sides' nonces and the content.
    ///
    /// Source: RFC 2104.
    fn mac(&self, purpose: &[u8; 8], nonces: &[Nonce; 2], content: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()).expect("a key may have any length");
        mac.chain_update(purpose).chain_update(nonces.as_flattened()).chain_update(content)
    }

    /// Proves that this process knows the secret.
    pub(super) fn proof(&self, purpose: &[u8; 8], nonces: &[Nonce; 2], content: &[u8]) -> Proof {
        self.mac(purpose, nonces, content).finalize().into_bytes().into()
    }

    /// Whether who sent the content knows the secret. The comparison takes equally long wherever proofs differ.
    pub(super) fn verifies(
        &self,
        purpose: &[u8; 8],
        nonces: &[Nonce; 2],
        content: &[u8],
        proof: &Proof,
    ) -> bool {
        self.mac(purpose, nonces, content).verify_slice(proof).is_ok()
    }
}

/// A new nonce.
pub(super) fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(nonce)
}

impl fmt::Debug for Token {
    /// Without the secret.
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(if self.is_empty() { "no token" } else { "a token" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_secret_purpose_nonces_and_content_alone() {
        let (token, nonces) = (Token::new("secret"), [[1; 32], [2; 32]]);
        let proof = token.proof(b"hello   ", &nonces, b"rank 1");
        let holds = |token: &Token, purpose, nonces: [Nonce; 2], content: &[u8]| {
            token.verifies(purpose, &nonces, content, &proof)
        };
        assert!(holds(&token, b"hello   ", nonces, b"rank 1"));
        assert!(!holds(&Token::new("guess"), b"hello   ", nonces, b"rank 1"));
        assert!(!holds(&Token::default(), b"hello   ", nonces, b"rank 1"));
        assert!(!holds(&token, b"answer  ", nonces, b"rank 1"));
        assert!(!holds(&token, b"hello   ", [[2; 32], [1; 32]], b"rank 1"));
        assert!(!holds(&token, b"hello   ", nonces, b"rank 2"));
        assert_ne!(Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(format!("{token:?}"), "a token");
    }

    /// RFC 4231, test case 2, whose data are split here into what is hashed one after the other.
    #[test]
    fn proofs_are_hmac_sha256() {
        let mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        let found = mac.chain_update(b"what do ya ").chain_update(b"want for nothing?").finalize();
        let hex: String = found.into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }
}
