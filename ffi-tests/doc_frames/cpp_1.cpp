/* ranks: 2
 */
#include <vector>

#include "block.inc"
