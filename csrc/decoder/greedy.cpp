#include "decoder/greedy.h"

#include <algorithm>

#include "linear/multiply.h"
#include "linear/pack.h"
#include "sampling/sampling.h"

namespace kvarn {

#define KVARN_DECLARE(name) \
    namespace name { void most_likely(const MostLikelyCall&); }
KVARN_FOR_EACH_ISA(KVARN_DECLARE)
#undef KVARN_DECLARE

namespace {

void draw(Isa isa, const MostLikelyCall& call) { KVARN_CALL(isa, most_likely, call); }

// One call: its passes, and the numbers before and behind their layers.
class Run {
  public:
    Run(Isa isa, const GreedyDecoder& decoder, const GreedyCall& call, const LayersMemory& memory)
        : isa_(isa), decoder_(decoder), call_(call), memory_(memory) {
        hidden_.resize(std::max(call.step.tokens, call.step.sequences) * decoder.embedding.in);
        logits_.resize(call.step.sequences * decoder.head.outputs());
        largest_.resize(call.step.sequences);
    }

    void all_passes() {
        StepTables step = call_.step;
        std::int64_t first_angle = step.tokens;
        pass(step, call_.token_ids, 0, call_.drawn);
        std::vector<std::int32_t> starts(step.sequences + 1), lens(step.context_lens, step.context_lens + step.sequences);
        for (std::int64_t s = 0; s <= step.sequences; ++s) starts[s] = static_cast<std::int32_t>(s);
        std::vector<std::int64_t> slots(step.sequences);
        step.query_starts = starts.data();
        step.context_lens = lens.data();
        step.slots = slots.data();
        for (std::int64_t n = 0; n < call_.passes; ++n) {
            step.sequences = step.tokens = call_.active[n];
            for (std::int64_t s = 0; s < step.sequences; ++s) {
                const std::int64_t position = lens[s]++;
                slots[s] = step.block_tables[s * step.table_stride + position / kBlock] * kBlock + position % kBlock;
            }
            std::int64_t* drawn = call_.drawn + n * call_.step.sequences;
            pass(step, drawn, first_angle, drawn + call_.step.sequences);
            first_angle += step.tokens;
        }
    }

  private:
    void pass(const StepTables& step, const std::int64_t* token_ids, std::int64_t first_angle, std::int64_t* drawn) {
        const std::int64_t size = decoder_.embedding.in;
        (is_integer(decoder_.embedding) ? unpack_integer : unpack_float)(decoder_.embedding, token_ids, step.tokens,
                                                                         hidden_.data());
        std::vector<AttentionMetadata> plans;
        plans.reserve(decoder_.windows.size());
        std::vector<KindOfLayer> kinds = call_.kinds;
        for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
            StepTables own = step;
            own.window = decoder_.windows[kind];
            kinds[kind].metadata = &plans.emplace_back(own);
            kinds[kind].cos += first_angle * kinds[kind].half_rotated;
            kinds[kind].sin += first_angle * kinds[kind].half_rotated;
        }
        const auto layers = static_cast<std::int64_t>(decoder_.layers->layers.size());
        run_layers(isa_, {decoder_.layers, 0, layers, kinds.data(), &decoder_.caches, nullptr, hidden_.data()}, memory_);
        for (std::int64_t s = 0; s < step.sequences; ++s) {  // the last token of each
            const float* last = &hidden_[(step.query_starts[s + 1] - 1) * size];
            std::copy(last, last + size, &hidden_[s * size]);
        }
        multiply_by(isa_, decoder_.head, hidden_.data(), step.sequences, logits_.data(), false, nullptr, memory_);
        draw(isa_, {logits_.data(), step.sequences, call_.vocab, decoder_.head.outputs(), drawn, largest_.data(),
                    &memory_.kernels});
    }

    const Isa isa_;
    const GreedyDecoder& decoder_;
    const GreedyCall& call_;
    const LayersMemory& memory_;
    std::vector<float> hidden_, logits_, largest_;
};

}  // namespace

void run_greedy(Isa isa, const GreedyDecoder& decoder, const GreedyCall& call, const LayersMemory& memory) {
    Run(isa, decoder, call, memory).all_passes();
}

}  // namespace kvarn
