#include "exec/gloo/announced_counts.h"

#include <fmt/format.h>

#include "base/check.h"

namespace hpsim {

namespace {

void require_agreement(const ControlBlock& control, Rank from, Rank to, std::uint64_t tag) {
  const auto sent = control.sent_count(from, to).read(tag);
  const auto expected = control.expected_count(from, to).read(tag);
  if (!sent || !expected) return;
  if (*sent == *expected) return;
  throw CountsDisagree(fmt::format("rank {} sends {} elements to rank {}, which expects {}",
                                   from.value, *sent, to.value, *expected));
}

}  // namespace

void announce_counts(const ControlBlock& control, const CollectiveCall& call,
                     const std::vector<Rank>& members, Rank me, std::uint64_t tag) {
  HPSIM_CHECK(call.counts_in.size() == members.size() && call.counts_out.size() == members.size(),
              "{} and {} counts for {} members", call.counts_in.size(), call.counts_out.size(),
              members.size());
  for (std::size_t m = 0; m < members.size(); ++m) {
    control.sent_count(me, members[m]).write(tag, call.counts_in[m]);
    control.expected_count(members[m], me).write(tag, call.counts_out[m]);
  }
  for (const Rank member : members) {
    require_agreement(control, me, member, tag);
    require_agreement(control, member, me, tag);
  }
}

}  // namespace hpsim
