#include "scenario/faults/fault_tables.h"

namespace hpsim {
namespace {

using Check = CheckId;
using Code = FindingCode;

constexpr FaultAims kOfUnits{.params = true, .ranks = true, .step = true, .unit = true};
constexpr FaultAims kOfSteps{.ranks = true, .step = true};
constexpr FaultAims kOfParameters{.params = true, .ranks = true, .step = true, .unit = true};

const std::vector<CaughtAs> kByCount{{Check::PlanAgreement, Code::CommCount}};
const std::vector<CaughtAs> kByScale{{Check::GradientParity, Code::GradScale}};
const std::vector<CaughtAs> kByGroup{{Check::PlanAgreement, Code::CommGroup}};
const std::vector<CaughtAs> kByOrder{{Check::PlanAgreement, Code::CommOrder}};

void append(std::vector<FaultKind>& all, std::vector<FaultKind> rows, std::string_view kind) {
  for (FaultKind& row : rows) {
    row.kind = kind;
    all.push_back(std::move(row));
  }
}

std::vector<FaultKind> left_out() {
  return {
      {.name = "skip_all_gather",
       .breaks = "a unit is not gathered: ranks compute with their own shard, and zeros elsewhere",
       .needs = "a unit that is gathered",
       .caught_by = kByCount,
       .reports = "pytorch/pytorch#75373",
       .aims = kOfUnits},
      {.name = "skip_reduce_scatter",
       .breaks = "gradients of a unit are not reduce-scattered: ranks keep their own terms",
       .needs = "a unit whose gradients are reduce-scattered",
       .caught_by = kByCount,
       .reports = "pytorch/pytorch#75373",
       .aims = kOfUnits},
      {.name = "skip_all_reduce",
       .breaks = "gradients of a unit are not all-reduced over its copies, which drift apart",
       .needs = "a unit whose gradients are all-reduced over its copies",
       .caught_by = {{Check::PlanAgreement, Code::CommCount},
                     {Check::ReplicaAgreement, Code::ReplicaDiverged}},
       .reports = "pytorch/pytorch#154888, verl#7493, pytorch#152710",
       .aims = kOfUnits},
      {.name = "skip_partial_all_reduce",
       .breaks = "gradients that are terms of a sum over tp, ep or the sequence stay so",
       .needs = "gradients that are reduced over other mesh dims than those of fully_shard",
       .caught_by = kByCount,
       .reports = "NVIDIA/Megatron-LM#1446, pytorch/torchtitan#2387, torchtitan#2416",
       .aims = kOfUnits},
      {.name = "skip_activation_collective",
       .breaks = "an activation is not sent: ranks take what they have themselves for all of it",
       .needs = "an activation, or its gradient, that is sent",
       .caught_by = kByCount,
       .reports = "pytorch/torchtitan#3412",
       .aims = kOfSteps},
      {.name = "skip_loss_collective",
       .breaks = "the statistics of the loss are not gathered over parts of the classes",
       .needs = "a cross entropy whose classes are cut over ranks",
       .caught_by = kByCount,
       .reports = "pytorch/torchtitan#3412",
       .aims = kOfSteps},
      {.name = "skip_norm_all_reduce",
       .breaks = "every rank clips by the norm of its own part of the gradients",
       .needs = "gradients that are clipped, on several ranks",
       .caught_by = kByCount,
       .reports = "NVIDIA-NeMo/Automodel#3816",
       .aims = kOfSteps},
      {.name = "skip_weight_average",
       .breaks = "updated weights are not averaged over their copies",
       .needs = "weights that are averaged",
       .caught_by = {{Check::PlanAgreement, Code::CommCount},
                     {Check::ReplicaAgreement, Code::ReplicaDiverged}},
       .reports = "hyper-parallel#278",
       .aims = kOfUnits},
  };
}

std::vector<FaultKind> carried_out_wrongly() {
  return {
      {.name = "double_all_gather",
       .breaks = "a unit is gathered twice in a row",
       .needs = "a unit that is gathered when it is needed, not before",
       .caught_by = kByCount,
       .reports = "hyper-parallel fdd0a80",
       .aims = kOfUnits},
      {.name = "double_all_reduce",
       .breaks = "the sum of an all-reduce of gradients is all-reduced once more",
       .needs = "gradients that are all-reduced",
       .caught_by = {{Check::PlanAgreement, Code::CommCount},
                     {Check::GradientParity, Code::GradScale}},
       .reports = "pytorch/torchtitan#2416",
       .aims = kOfUnits},
      {.name = "double_reduce_scatter",
       .breaks = "gradients are reduce-scattered twice, and both results added up",
       .needs = "a unit whose gradients are reduce-scattered",
       .caught_by = {{Check::PlanAgreement, Code::CommCount},
                     {Check::GradientParity, Code::GradScale}},
       .reports = "pytorch/torchtitan#2416",
       .aims = kOfUnits},
      {.name = "reorder_collectives",
       .breaks = "of two units that are gathered one after the other, the second is gathered first",
       .needs = "two units that are gathered in a pass when they are needed, not before",
       .caught_by = kByOrder,
       .reports = "pytorch/pytorch#75373, pytorch#75902",
       .aims = kOfUnits},
      {.name = "wrong_op_max",
       .breaks = "gradients are reduced to the largest of what ranks send, not the sum",
       .needs = "gradients that are reduced",
       .caught_by = kByOrder,
       .reports = "pytorch/pytorch#75373",
       .aims = kOfUnits},
      {.name = "all_reduce_for_reduce_scatter",
       .breaks =
           "gradients are all-reduced, and all but the own part thrown away, where they should "
           "be reduce-scattered",
       .needs = "a unit whose gradients are reduce-scattered",
       .caught_by = kByOrder,
       .reports = "pytorch/pytorch#112144, pytorch#75373",
       .aims = kOfUnits},
      {.name = "wrong_wire_dtype",
       .breaks = "gradients are sent and summed as bfloat16, whatever reduce_dtype says",
       .needs = "gradients that are reduced in a dtype of more than 16 bits",
       .caught_by = {{Check::PlanAgreement, Code::CommDtype}},
       .reports = "pytorch/pytorch#190626, hyper-parallel#691, hyper-parallel 4f0ba61",
       .aims = kOfUnits},
      {.name = "wrong_unit_gathered",
       .breaks = "another unit of the same size is gathered, and taken for the unit's parameters",
       .needs = "two units of one size, group and dtype that are gathered in a pass",
       .caught_by = kByOrder,
       .reports = "pytorch/pytorch#75373, pytorch#75902",
       .aims = kOfUnits},
      {.name = "wrong_unit_reduced",
       .breaks = "the gradients of the unit before are reduced once more, and taken for the unit's",
       .needs = "two units of one size, group and dtype whose gradients are reduced in a pass",
       .caught_by = kByOrder,
       .reports = "pytorch/pytorch#75373, hyper-parallel 4f0ba61",
       .aims = kOfUnits},
      {.name = "extra_row_on_rank",
       .breaks = "a collective of a unit has one row more than the plan says",
       .needs = "a unit that is gathered when it is needed, or reduced",
       .caught_by = {{Check::PlanAgreement, Code::CommShape}},
       .reports = "pytorch/gloo#456, gloo#334, pytorch/pytorch#158719",
       .aims = kOfUnits},
  };
}

std::vector<FaultKind> of_groups() {
  return {
      {.name = "wrong_group_dim",
       .breaks = "collectives run along another mesh dim of the same size",
       .needs = "two mesh dims of one size, and a collective along one of them",
       .caught_by = kByGroup,
       .reports = "pytorch/torchtitan#3231, NVIDIA/Megatron-LM#5916",
       .aims = kOfUnits},
      {.name = "wrong_group_stride",
       .breaks = "groups are of consecutive ranks where the plan has ranks apart",
       .needs = "a collective along a mesh dim that is not the last",
       .caught_by = kByGroup,
       .reports = "pytorch/torchtitan#3231",
       .aims = kOfUnits},
      {.name = "dropped_group_dim",
       .breaks = "an all-reduce over several mesh dims leaves one of them out",
       .needs = "an all-reduce over several mesh dims",
       .caught_by = kByGroup,
       .reports = "pytorch/torchtitan#3231, torchtitan#2329",
       .aims = kOfUnits},
  };
}

std::vector<FaultKind> of_scale() {
  return {
      {.name = "sum_for_avg",
       .breaks = "gradients are summed over data ranks, not averaged",
       .needs = "reduce_op avg over several data ranks, without gradient_divide_factor",
       .caught_by = kByScale,
       .reports = "pytorch/pytorch#162338",
       .aims = kOfParameters},
      {.name = "scale_twice",
       .breaks = "the factor k/F is applied twice",
       .needs = "a factor that is not 1",
       .caught_by = kByScale,
       .reports = "pytorch/pytorch#155903, pytorch#155904",
       .aims = kOfParameters},
      {.name = "scale_by_numel",
       .breaks = "gradients are divided by the number of elements of their parameter too",
       .needs = "a parameter of more than one element",
       .caught_by = kByScale,
       .reports = "pytorch/pytorch#144045",
       .aims = kOfParameters},
      {.name = "scale_missing_when_alone",
       .breaks = "the factor k/F is left out where the shard group has one rank",
       .needs = "a shard group of one rank, and a factor that is not 1",
       .caught_by = kByScale,
       .reports = "pytorch/pytorch#167178",
       .aims = kOfParameters},
      {.name = "scale_twice_when_alone",
       .breaks = "the factor k/F is applied twice where the shard group has one rank",
       .needs = "a shard group of one rank, and a factor that is not 1",
       .caught_by = kByScale,
       .reports = "pytorch/pytorch#167178",
       .aims = kOfParameters},
      {.name = "expert_divisor_ep",
       .breaks = "gradients of experts are divided by ep, not by the number of data ranks",
       .needs = "experts cut along ep, and reduce_op avg over another number of data ranks",
       .caught_by = kByScale,
       .reports = "ByteDance-Seed/VeOmni#205, NVIDIA/Megatron-LM#5956",
       .aims = kOfParameters},
      {.name = "expert_divisor_group",
       .breaks = "gradients of experts are divided by the size of their own smaller group",
       .needs = "experts cut along ep, and reduce_op avg over another number of data ranks",
       .caught_by = kByScale,
       .reports = "pytorch/pytorch#160285, pytorch/torchtitan#1551, torchtitan#1793, "
                  "NVIDIA/Megatron-LM#5956",
       .aims = kOfParameters},
      {.name = "average_of_replicas_again",
       .breaks = "gradients are divided by the number of replicas too",
       .needs = "replicas",
       .caught_by = kByScale,
       .reports = "pytorch/pytorch#155903, pytorch#155904",
       .aims = kOfParameters},
      {.name = "predivision_twice",
       .breaks = "what float16 gradients are divided by before the sum is applied twice",
       .needs = "gradients that are reduced in float16, and a divisor of more than 1",
       .caught_by = kByScale,
       .reports = "pytorch/pytorch#155903",
       .aims = kOfParameters},
  };
}

std::vector<FaultKind> of_micro_batches() {
  return {
      {.name = "ignore_sync_flag",
       .breaks = "gradients are reduced in every micro-batch, not in the last alone",
       .needs = "micro-batches that only add gradients up, and gradients that are reduced",
       .caught_by = kByCount,
       .reports = "huggingface/accelerate#3762, NVIDIA/cosmos-framework#161",
       .aims = kOfUnits},
      {.name = "sync_first",
       .breaks = "gradients are reduced in the first micro-batch, and what later ones add is not",
       .needs = "micro-batches that only add gradients up, and gradients that are reduced",
       .caught_by = {{Check::PlanAgreement, Code::CommOrder},
                     {Check::GradientParity, Code::GradValue}},
       .reports = "huggingface/accelerate#3762",
       .aims = kOfUnits},
      {.name = "all_reduce_each_micro_batch",
       .breaks = "gradients are all-reduced in every micro-batch, not in the last alone",
       .needs = "all-reduces over copies that wait for the last micro-batch",
       .caught_by = kByCount,
       .reports = "pytorch/torchtitan#1929, VeOmni#781, VeOmni#1026, hyper-parallel 9594cc2",
       .aims = kOfUnits},
      {.name = "rescale_each_micro_batch",
       .breaks = "what earlier micro-batches left of a gradient is scaled by k/F once more",
       .needs = "several micro-batches, and a factor that is not 1",
       .caught_by = {{Check::GradientParity, Code::GradValue}},
       .reports = "pytorch/torchtitan#1929",
       .aims = kOfParameters},
      {.name = "zero_each_micro_batch",
       .breaks = "gradients are zeroed in every micro-batch: only the last one counts",
       .needs = "several micro-batches",
       .caught_by = {{Check::GradientParity, Code::GradValue}},
       .reports = "pytorch/torchtitan#1929",
       .aims = kOfParameters},
      {.name = "skip_micro_batch",
       .breaks = "the gradients of the first micro-batch are lost",
       .needs = "several micro-batches",
       .caught_by = {{Check::GradientParity, Code::GradValue}},
       .reports = "pytorch/pytorch#160279",
       .aims = kOfParameters},
  };
}

std::vector<FaultKind> of_tokens() {
  return {
      {.name = "token_order_swapped",
       .breaks = "what experts give comes back with two rows exchanged",
       .needs = "experts that exchange positions",
       .caught_by = {{Check::LossParity, Code::LossValue},
                     {Check::GradientParity, Code::GradValue}},
       .reports = "pytorch/torchtitan#3604, torchtitan#3193",
       .aims = kOfSteps},
      {.name = "dispatch_to_wrong_expert",
       .breaks = "a position goes to another expert than it chose",
       .needs = "experts that exchange positions, more than one of them",
       .caught_by = {{Check::LossParity, Code::LossValue},
                     {Check::GradientParity, Code::GradValue}},
       .reports = "pytorch/torchtitan#3604, torchtitan#3193",
       .aims = kOfSteps},
      {.name = "combine_weight_missing",
       .breaks = "outputs of experts are added up without the weights of the router",
       .needs = "experts that exchange positions",
       .caught_by = {{Check::LossParity, Code::LossValue},
                     {Check::GradientParity, Code::GradValue}},
       .reports = "pytorch/torchtitan#3604",
       .aims = kOfSteps},
  };
}

std::vector<FaultKind> of_losses() {
  return {
      {.name = "mean_of_means",
       .breaks = "the loss is the mean of the means of ranks and micro-batches, not that over all "
                 "valid positions",
       .needs = "loss_normalization global_tokens, and unequal data.tokens",
       .caught_by = {{Check::LossParity, Code::LossValue}},
       .reports = "pytorch/torchtitan#2206, torchtitan#4167, torchtitan#1842, "
                  "NVIDIA/Megatron-LM#4590, ms-swift#10096"},
      {.name = "same_data_on_replicas",
       .breaks = "replicas read the same samples",
       .needs = "replicas along a data dim, and no data.inactive",
       .caught_by = {{Check::GradientParity, Code::GradValue},
                     {Check::LossParity, Code::LossValue}},
       .reports = "pytorch/pytorch#140183"},
  };
}

}  // namespace

std::vector<FaultKind> exchange_faults() {
  std::vector<FaultKind> all;
  append(all, left_out(), "collectives");
  append(all, carried_out_wrongly(), "collectives");
  append(all, of_groups(), "groups");
  append(all, of_scale(), "scale");
  append(all, of_micro_batches(), "accumulation");
  append(all, of_tokens(), "routing");
  append(all, of_losses(), "loss");
  return all;
}

}  // namespace hpsim
