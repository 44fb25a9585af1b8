// BLAKE2b with digests of 16 bytes and no key (RFC 7693), for messages of at most 256 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvarn::routing {

constexpr std::size_t kDigestBytes = 16;

// The digest of `size` bytes, 1 to 256.
void blake2b_16(const std::uint8_t* message, std::size_t size, std::uint8_t* digest);

}  // namespace kvarn::routing
