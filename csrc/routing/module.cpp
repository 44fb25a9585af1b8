#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <span>
#include <vector>

#include "routing/blake2b.h"
#include "routing/block_index.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn::routing {
namespace {

constexpr std::size_t kNameBytes = 8;

// Names as they come from the wire: 8 bytes each, which may stand anywhere in memory.
std::vector<std::uint64_t> names_in(const nb::bytes& packed) {
    if (packed.size() % kNameBytes != 0) throw nb::value_error("names of blocks are 8 bytes each");
    std::vector<std::uint64_t> names(packed.size() / kNameBytes);
    if (!names.empty()) std::memcpy(names.data(), packed.data(), packed.size());
    return names;
}

int checked(int replica) {
    if (replica < 0 || replica >= BlockIndex::kReplicas) throw nb::value_error("replicas are numbered 0 to 63");
    return replica;
}

// Names of the full blocks of a sequence, chained to `root`.
nb::bytes block_names(const nb::bytes& root, const nb::list& tokens, std::size_t block_size) {
    if (root.size() != kDigestBytes) throw nb::value_error("the root is a hash of 16 bytes");
    if (block_size == 0 || block_size > 30) throw nb::value_error("a block has 1 to 30 tokens");
    const std::size_t blocks = tokens.size() / block_size;
    std::vector<std::int64_t> ids(blocks * block_size);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = nb::cast<std::int64_t>(tokens[i]);
    std::vector<std::uint64_t> names(blocks);
    {
        const nb::gil_scoped_release released;
        std::uint8_t message[kDigestBytes + 30 * sizeof(std::int64_t)];
        std::memcpy(message, root.data(), kDigestBytes);
        for (std::size_t block = 0; block < blocks; ++block) {
            const std::size_t bytes = block_size * sizeof(std::int64_t);
            std::memcpy(message + kDigestBytes, ids.data() + block * block_size, bytes);
            std::uint8_t digest[kDigestBytes];
            blake2b_16(message, kDigestBytes + bytes, digest);
            std::memcpy(message, digest, kDigestBytes);
            std::memcpy(&names[block], digest, kNameBytes);
        }
    }
    return nb::bytes(names.data(), blocks * kNameBytes);
}

}  // namespace
}  // namespace kvarn::routing

NB_MODULE(_block_index, m) {
    using namespace kvarn::routing;
    nb::set_leak_warnings(false);  // a gateway ends with its index still in use
    m.doc() = "The index of cached blocks and their names. Use kvarn.routing.index.";
    m.def("block_names", &block_names, "root"_a, "tokens"_a, "block_size"_a);
    nb::class_<BlockIndex>(m, "BlockIndex")
        .def(nb::init<>())
        .def("insert", [](BlockIndex& self, int replica, const nb::bytes& names) {
            self.insert(checked(replica), names_in(names));
        }, "replica"_a, "names"_a)
        .def("remove", [](BlockIndex& self, int replica, const nb::bytes& names) {
            self.remove(checked(replica), names_in(names));
        }, "replica"_a, "names"_a)
        .def("clear", [](BlockIndex& self, int replica) { self.clear(checked(replica)); }, "replica"_a)
        .def("match", [](const BlockIndex& self, const nb::bytes& names) { return self.match(names_in(names)); },
             "names"_a)
        .def("__len__", &BlockIndex::count)
        .def_prop_ro("memory_bytes", &BlockIndex::memory_bytes);
}
