#include "report/table.h"

#include "support/catch.h"

namespace hpsim {
namespace {

TEST_CASE("text is cut by code points, not bytes") {
  CHECK(elided("weight", 6) == "weight");
  CHECK(elided("weight", 4) == "wei…");
  CHECK(elided("weight", 1) == "…");
  CHECK(elided("weight", 0).empty());
  CHECK(elided("größe", 5) == "größe");
  CHECK(elided("größer", 4) == "grö…");
  CHECK(columns_of("grö…") == 4);
}

TEST_CASE("names are cut inside: they differ in their ends") {
  CHECK(elided_inside("blocks.0.attn.wq", 16) == "blocks.0.attn.wq");
  CHECK(elided_inside("blocks.0.attn.wq", 10) == "blo…ttn.wq");
  CHECK(elided_inside("größer", 5) == "g…ßer");
  CHECK(elided_inside("weight", 2) == "…t");
  CHECK(elided_inside("weight", 1) == "…");
  CHECK(elided_inside("weight", 0).empty());
}

TEST_CASE("columns are aligned and lines have no trailing blanks") {
  Table table({{"name"}, {"count", true}, {"note"}});
  table.add_row({{"a"}, {"1"}, {"x"}});
  table.add_row({{"größe"}, {"1,234"}});
  table.add_line("… 3 more of a line that is longer than the table");
  CHECK(table.text(2, 100, false) ==
        "  name   count  note\n"
        "  a          1  x\n"
        "  größe  1,234\n"
        "  … 3 more of a line that is longer than the table\n");
}

TEST_CASE("flexible columns give way, others do not") {
  Table table({{"parameter", false, true}, {"shape"}});
  table.add_row({{"blocks.0.attention.wq.weight"}, {"(4096, 4096)"}});
  CHECK(table.text(0, 30, false) ==
        "parameter         shape\n"
        "block….wq.weight  (4096, 4096)\n");
  CHECK(table.text(0, 5, false) ==
        "parameter  shape\n"
        "bl…weight  (4096, 4096)\n");
}

TEST_CASE("of flexible columns the widest gives way first") {
  Table table({{"a", false, true}, {"b", false, true}, {"c"}});
  table.add_row({{"0123456789012345"}, {"012345678901"}, {"x"}});
  // 16 + 12 + 1 and two gaps of two are 33, 7 too many: the first gives 4, then both in turn, so
  // that 10 and 11 are left.
  CHECK(table.text(0, 26, false) ==
        "a           b            c\n"
        "012…012345  012…5678901  x\n");
}

TEST_CASE("colour changes no column") {
  Table table({{"a"}, {"b", true}});
  table.add_row({{"x", Ink::Red}, {"1"}});
  CHECK(table.text(0, 100, true) ==
        "\x1b[2ma\x1b[0m  \x1b[2mb\x1b[0m\n"
        "\x1b[1;31mx\x1b[0m  1\n");
  CHECK(painted("x", Ink::Plain, true) == "x");
  CHECK(painted("x", Ink::Red, false) == "x");
}

}  // namespace
}  // namespace hpsim
